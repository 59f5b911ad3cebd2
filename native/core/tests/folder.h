/* A folder of its own for a test that looks at what lies beside a ring. */
#ifndef SHMRING_FOLDER_H
#define SHMRING_FOLDER_H

#include <dirent.h>

#include "check.h"

static char folder[80], at[96];

static inline void folder_begin(void)
{
	snprintf(folder, sizeof folder, "%s.XXXXXX", ring_path());
	NEED(mkdtemp(folder));
	snprintf(at, sizeof at, "%s/ring", folder);
}

/* Counts the files in the folder; `path` (may be NULL) receives the path of the last one. */
static inline int files_in_folder(char *path, size_t size)
{
	DIR *dir = opendir(folder);
	int n = 0;

	NEED(dir);
	for (struct dirent *e; (e = readdir(dir));) {
		if (e->d_name[0] == '.' && (!e->d_name[1] || e->d_name[1] == '.'))
			continue;
		n++;
		if (path)
			snprintf(path, size, "%s/%s", folder, e->d_name);
	}
	closedir(dir);
	return n;
}

static inline void folder_end(void)
{
	char path[400];

	while (files_in_folder(path, sizeof path))
		unlink(path);
	NEED(rmdir(folder) == 0);
}

/* A test of what lies in its folder. */
#define FOLDER_TEST(test)                                                                                         \
	static void test##_in(void);                                                                              \
	TEST(test)                                                                                                \
	{                                                                                                         \
		folder_begin();                                                                                   \
		test##_in();                                                                                      \
		folder_end();                                                                                     \
	}                                                                                                         \
	static void test##_in(void)

static inline shmring *make(const char *path, const struct shmring_options *options)
{
	shmring *r = NULL;

	NEED(shmring_create(path, options, &r) == SHMRING_OK);
	opened(OPEN_RINGS, r);
	return r;
}

static const struct shmring_options small = {.slots = 1024};

/* Whether this very ring has the name. */
static inline bool is_at(const char *path, const shmring *r)
{
	shmring *found = NULL;
	bool same = shmring_attach(path, SHMRING_READ_ONLY, &found) == SHMRING_OK &&
		    memcmp(found->header.uuid, r->header.uuid, sizeof r->header.uuid) == 0;

	shmring_close(found);
	return same;
}

#endif
