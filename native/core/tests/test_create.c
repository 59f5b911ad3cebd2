/* Making rings. */
#include <dlfcn.h>
#include <linux/fs.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "folder.h"
#include "no_tmpfile.h"
#include "syscalls.h"

/* --- in the middle of a creation -------------------------------------------------- */

static void (*while_filling)(void);
static unsigned interruptions; /* EINTRs still to come for calls that reserve more than a page */
static unsigned reservations;
static const char *meminfo; /* text that replaces /proc/meminfo; NULL: the real one */

/* In place of libc's. */
FILE *fopen(const char *path, const char *mode)
{
	static FILE *(*libc_fopen)(const char *, const char *);

	if (meminfo && strcmp(path, "/proc/meminfo") == 0)
		return fmemopen((void *)(uintptr_t)meminfo, strlen(meminfo), mode);
	if (!libc_fopen)
		*(void **)&libc_fopen = dlsym(RTLD_NEXT, "fopen");
	return libc_fopen(path, mode);
}

/* In place of libc's. */
int posix_fallocate(int fd, off_t offset, off_t length)
{
	void (*act)(void) = while_filling;

	while_filling = NULL;
	reservations++;
	if (act)
		act();
	if (interruptions && length > sysconf(_SC_PAGESIZE)) {
		interruptions--;
		return EINTR;
	}
	return syscall(SYS_fallocate, fd, 0, offset, length) ? errno : 0;
}

static shmring *another;

static void make_another(void)
{
	another = make(at, &(struct shmring_options){.slots = 2048});
}

static void nothing_is_there_yet(void)
{
	shmring *r;

	CHECK_IS(shmring_attach(at, 0, &r), SHMRING_E_NOT_FOUND);
}

/* --- creation ------------------------------------------------------------------------ */

static void others_first(void)
{
	shmring *r = NULL;

	folder_begin();
	while_filling = make_another;
	CHECK_IS(shmring_create(at, &small, &r), SHMRING_E_EXISTS);
	CHECK(!r && is_at(at, another));
	CHECK_IS(files_in_folder(NULL, 0), 1);
	shmring_close(another);
	folder_end();
}

TEST(a_ring_that_another_process_has_made_meanwhile_stays)
{
	others_first();
}

static void half_made(void)
{
	folder_begin();
	while_filling = nothing_is_there_yet;
	shmring_close(make(at, &small));
	CHECK(!while_filling);
	folder_end();
}

TEST(a_ring_that_is_being_made_is_not_there)
{
	half_made();
}

FOLDER_TEST(a_ring_appears_with_its_maker_in_it)
{
	struct shmring_participant_info seat;
	shmring *r = make(at, &small);

	CHECK_IS(shmring_participant_info(r, 0, &seat), SHMRING_OK);
	CHECK(seat.alive && seat.pid == (uint32_t)getpid());
	shmring_close(r);
	CHECK_IS(shmring_create(at, &(struct shmring_options){.slots = 1024, .temporary = true}, NULL),
		 SHMRING_E_EXISTS);
	NEED(unlink(at) == 0);
	CHECK_IS(shmring_create(at, &(struct shmring_options){.slots = 1024, .temporary = true}, NULL),
		 SHMRING_E_INVALID);
	CHECK_IS(files_in_folder(NULL, 0), 0);
}

FOLDER_TEST(a_ring_that_is_there_is_opened_if_it_is_large_enough)
{
	const struct shmring_options large = {.slots = 2048};
	shmring *r = make(at, &small), *other = NULL;
	char words[64];

	CHECK_IS(shmring_open_or_create(at, &small, &other), SHMRING_OK);
	shmring_close(other);
	CHECK_IS(shmring_open_or_create(at, &large, &other), SHMRING_E_EXISTS);
	CHECK(!other);
	snprintf(words, sizeof words, "already with %d slots, fewer than %d", (int)small.slots, (int)large.slots);
	CHECK(strstr(shmring_error_message(), words));
	CHECK(strstr(shmring_error_message(), at)); /* names the path, not only the file */
	shmring_close(r);
	NEED(unlink(at) == 0);
	CHECK_IS(shmring_open_or_create(at, &large, &other), SHMRING_OK);
	shmring_close(other);
}

FOLDER_TEST(a_path_that_can_only_lead_to_a_folder_is_refused)
{
	const char *ends[] = {"/", "/.", "/.."};
	shmring *r = NULL;
	char path[128];

	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof path, "%s%s", at, ends[i]);
		CHECK_IS(shmring_create(path, &small, &r), SHMRING_E_INVALID);
		CHECK(strstr(shmring_error_message(), path));
		CHECK_IS(shmring_open_or_create(path, &small, &r), SHMRING_E_INVALID);
		CHECK_IS(shmring_attach(path, 0, &r), SHMRING_E_INVALID);
		CHECK_IS(shmring_unlink(path, NULL, NULL, NULL), SHMRING_E_INVALID);
		CHECK_IS(shmring_reap(path), SHMRING_E_INVALID);
	}
	CHECK_IS(files_in_folder(NULL, 0), 0);
}

/* How often this process maps the file with this name. */
static int maps_of(const char *path)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	NEED(maps);
	while (fgets(line, sizeof line, maps)) {
		line[strcspn(line, "\n")] = 0;
		n += strlen(line) > strlen(path) && strcmp(line + strlen(line) - strlen(path), path) == 0;
	}
	fclose(maps);
	return n;
}

FOLDER_TEST(the_map_of_a_new_ring_has_its_name)
{
	shmring *r = make(at, &(struct shmring_options){.slots = 1024, .schema = "schema", .schema_bytes = 6});

	CHECK(maps_of(at) >= 2);
	shmring_close(r);
	CHECK_IS(maps_of(at), 0);
}

static void say_and_wait(void)
{
	kill(getpid(), SIGSTOP);
}

static int create_and_stop(void *unused)
{
	(void)unused;
	while_filling = say_and_wait;
	return shmring_create(at, &small, NULL);
}

static pid_t stopped_maker(void)
{
	pid_t pid = spawn(create_and_stop, NULL);
	int status;

	NEED(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
	return pid;
}

FOLDER_TEST(a_killed_maker_leaves_nothing)
{
	pid_t pid = stopped_maker();

	kill(pid, SIGKILL);
	CHECK_IS(reap(pid), -SIGKILL);
	CHECK_IS(files_in_folder(NULL, 0), 0);
	shmring_close(make(at, &small));
}

/* --- memory ---------------------------------------------------------------------------- */

static int on_a_small_tmpfs(void *unused)
{
	char dir[] = "/tmp/shmring-small.XXXXXX";
	char path[64];
	int fd;
	shmring *r = NULL;

	(void)unused;
	if (geteuid() || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    !mkdtemp(dir) || mount("tmpfs", dir, "tmpfs", 0, "size=1m")) {
		printf("  (cannot mount a tmpfs here: skipped)\n");
		return 0;
	}
	snprintf(path, sizeof path, "%s/ring", dir);
	CHECK_IS(shmring_create(path, &(struct shmring_options){.slots = 65536}, NULL), SHMRING_E_NO_SPACE);
	CHECK(rmdir(dir) < 0 && errno == EBUSY); /* it is mounted, and empty */
	CHECK_IS(shmring_create(path, &small, NULL), SHMRING_OK);
	snprintf(path, sizeof path, "%s/rest", dir);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	while (write(fd, dir, 1) == 1 && posix_fallocate(fd, lseek(fd, 0, SEEK_END), 4096) == 0)
		(void)lseek(fd, 0, SEEK_END);
	close(fd);
	/* The file system is full now, and the ring has all its memory. */
	snprintf(path, sizeof path, "%s/more", dir);
	CHECK_IS(shmring_create(path, &small, NULL), SHMRING_E_NO_SPACE);
	snprintf(path, sizeof path, "%s/ring", dir);
	NEED(shmring_attach(path, 0, &r) == SHMRING_OK);
	memset(r->slots, 1, 1024 * SLOT_BYTES);
	shmring_close(r);
	umount2(dir, MNT_DETACH);
	rmdir(dir);
	return 0;
}

TEST(a_full_file_system_is_an_error_at_creation_and_never_later)
{
	CHECK_IS(reap(spawn(on_a_small_tmpfs, NULL)), 0);
}

static int with_a_limit(void *unused)
{
	(void)unused;
	NEED(setrlimit(RLIMIT_FSIZE, &(struct rlimit){100000, RLIM_INFINITY}) == 0);
	CHECK_IS(shmring_create(at, &small, NULL), SHMRING_E_NO_SPACE);
	CHECK(strstr(shmring_error_message(), "no file that this process writes may have more than 100000"));
	CHECK_IS(files_in_folder(NULL, 0), 0);
	return 0;
}

FOLDER_TEST(more_than_a_file_may_have_is_refused_and_no_signal_kills)
{
	CHECK_IS(reap(spawn(with_a_limit, NULL)), 0);
}

FOLDER_TEST(more_than_the_memory_left_is_refused_before_a_page_is_taken)
{
	meminfo = "MemTotal: 64 kB\nMemAvailable: 200 kB\nSwapFree: 100 kB\n";
	reservations = 0;
	CHECK_IS(shmring_create(at, &small, NULL), SHMRING_E_NO_SPACE);
	CHECK(strstr(shmring_error_message(), "the memory of this machine has 307200 left"));
	CHECK_IS(reservations, 0);
	CHECK_IS(files_in_folder(NULL, 0), 0);
	meminfo = "MemTotal: 64 kB\nMemAvailable: 200 kB\nSwapFree: 10000 kB\n";
	shmring_close(make(at, &small));
	meminfo = NULL;
}

FOLDER_TEST(an_interrupted_reservation_goes_on)
{
	shmring *r;

	interruptions = 40;
	r = make(at, &small);
	CHECK_IS(interruptions, 0);
	memset(r->slots, 1, 1024 * SLOT_BYTES); /* SIGBUS, were there a hole on a full file system */
}

/* --- where there is no O_TMPFILE -------------------------------------------------------- */

static int without_tmpfile(void *job)
{
	refuse_tmpfile();
	(*(void (**)(void))job)();
	return 0;
}

static void in_a_child_without_tmpfile(void (*job)(void))
{
	CHECK_IS(reap(spawn(without_tmpfile, &job)), 0);
}

TEST(without_o_tmpfile_others_rings_stay_too)
{
	in_a_child_without_tmpfile(others_first);
	in_a_child_without_tmpfile(half_made);
}

static bool no_exclusive_rename; /* simulates NFS */

static bool intercept(long number, long argument[6])
{
	if (!no_exclusive_rename || number != SYS_renameat2 || argument[4] != RENAME_NOREPLACE)
		return false;
	errno = EINVAL;
	return true;
}

static void others_first_by_linking(void)
{
	no_exclusive_rename = true;
	others_first();
}

static void make_by_linking(void)
{
	struct stat st;
	shmring *r;

	no_exclusive_rename = true;
	folder_begin();
	r = make(at, &small);
	CHECK(is_at(at, r) && stat(at, &st) == 0 && st.st_nlink == 1);
	CHECK_IS(files_in_folder(NULL, 0), 1);
	shmring_close(r);
	folder_end();
}

TEST(without_an_exclusive_rename_the_draft_is_linked)
{
	in_a_child_without_tmpfile(make_by_linking);
	in_a_child_without_tmpfile(others_first_by_linking);
}

static void leave_and_sweep_a_draft(void)
{
	char draft[400];
	pid_t pid;

	folder_begin();
	pid = stopped_maker();
	CHECK_IS(files_in_folder(draft, sizeof draft), 1);
	CHECK(strstr(draft, "/.shmring-new-"));
	CHECK_IS(shmring_reap(draft), 0); /* its maker lives */
	CHECK_IS(shmring_reapable(draft), 0);
	kill(pid, SIGKILL);
	CHECK_IS(reap(pid), -SIGKILL);
	CHECK(access(at, F_OK) != 0);
	CHECK_IS(shmring_reapable(draft), 1);
	CHECK_IS(shmring_reap(draft), 1);
	CHECK_IS(files_in_folder(NULL, 0), 0);
	folder_end();
}

TEST(what_a_killed_maker_leaves_without_o_tmpfile_is_reaped)
{
	in_a_child_without_tmpfile(leave_and_sweep_a_draft);
}

/* gc comes by between the creation of the draft and its lock. */
static bool sweep_before_the_lock;

int fcntl(int fd, int command, ...)
{
	char draft[400];
	va_list args;
	void *lock;

	va_start(args, command);
	lock = va_arg(args, void *);
	va_end(args);
	if (command == F_OFD_SETLK && sweep_before_the_lock) {
		sweep_before_the_lock = false;
		CHECK_IS(files_in_folder(draft, sizeof draft), 1);
		CHECK_IS(shmring_reap(draft), 1);
	}
	return (int)syscall(SYS_fcntl, fd, command, lock);
}

static void swept_early(void)
{
	shmring *r;

	folder_begin();
	sweep_before_the_lock = true;
	r = make(at, &small);
	CHECK(!sweep_before_the_lock && is_at(at, r));
	CHECK_IS(files_in_folder(NULL, 0), 1);
	shmring_close(r);
	folder_end();
}

TEST(a_draft_that_is_swept_before_it_is_locked_is_made_again)
{
	in_a_child_without_tmpfile(swept_early);
}
