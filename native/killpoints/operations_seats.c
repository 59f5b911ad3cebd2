/* Operations that make rings, and open and close producers and consumers. */
#include <dirent.h>

#include "no_tmpfile.h"
#include "scenes.h"

static void enter_with_leases(struct victim *v)
{
	enter_consumer(v);
	for (int i = 0; i < 2; i++)
		NEED(shmring_take(v->m, 2, 2, &v->lease[i]) == SHMRING_OK);
}

static void close_handle(struct victim *v)
{
	shmring_close(v->r);
	v->r = NULL;
}

static void act_join(struct victim *v)
{
	v->m = consumer_of(v->r, "b");
}

static void act_join_ephemeral(struct victim *v)
{
	v->m = consumer_with(v->r, "e",
			     &(struct shmring_branch_options){.start = SHMRING_EARLIEST, .ephemeral = true});
}

static void act_leave(struct victim *v)
{
	v->shared->releasing = 0xf;
	crash_order();
	shmring_consumer_close(v->m);
	crash_order();
	v->shared->released = 0xf;
}

static void act_abandon(struct victim *v)
{
	shmring_consumer_abandon(v->m);
}

/* Abandons the seat, like shmring_consumer_close() if the admin lock cannot be had. */
static void act_give_up(struct victim *v)
{
	seat_abandon(v->r, v->m->seat_index);
}

static void act_attach(struct victim *v)
{
	v->r = ring_again(v->path);
}

static void act_open_close(struct victim *v)
{
	shmring_producer_close(producer_of(v->r));
}

static void act_recover(struct victim *v)
{
	NEED(shmring_recover(v->r, NULL) == SHMRING_OK);
}

/* Takes all seats but the orphan's. */
static void enter_all_seats(struct victim *v)
{
	uint32_t seat, barred;

	enter_producer(v);
	while (seat_try(v->r, ROLE_ATTACHED, "more", 0, &seat, &barred) == SHMRING_OK)
		;
}

/* Returns the path of a file in the folder beside the ring in which another ring is made. */
static const char *nursery(const char *ring, const char *file)
{
	static char path[400];

	snprintf(path, sizeof path, "%s.folder/%s", ring, file);
	return path;
}

static const struct shmring_options made = {.slots = 1024, .participants = 2};

static void enter_nursery(struct victim *v)
{
	NEED(mkdir(nursery(v->path, ""), 0700) == 0);
}

static void enter_without_tmpfile(struct victim *v)
{
	enter_nursery(v);
	refuse_tmpfile();
}

static void act_create(struct victim *v)
{
	shmring *r;

	NEED(shmring_create(nursery(v->path, "ring"), &made, &r) == SHMRING_OK);
}

/* Runs gc over the folder; returns the number of files that gc removed, and stores the number of all files. */
static int sweep_nursery(int *files)
{
	DIR *folder = opendir(nursery(ring_path(), ""));
	int swept = 0;

	NEED(folder);
	*files = 0;
	for (struct dirent *e; (e = readdir(folder));)
		if (e->d_type == DT_REG) {
			++*files;
			if (shmring_reap(nursery(ring_path(), e->d_name)) == 1)
				swept++;
			else
				unlink(nursery(ring_path(), e->d_name));
		}
	closedir(folder);
	return swept;
}

/* Checks that the file with the ring's name is a ring of a dead process, that every other file
 * is a draft known to gc, and that a ring can be made. */
static void check_created(struct survivors *s)
{
	struct shmring_participant_info seat;
	bool there = access(nursery(ring_path(), "ring"), F_OK) == 0;
	shmring *r = NULL;
	int files, swept;

	CHECK(there || !s->victim->done);
	if (there) {
		CHECK_IS(shmring_attach(nursery(ring_path(), "ring"), SHMRING_READ_ONLY, &r), SHMRING_OK);
		CHECK(r && shmring_participant_info(r, 0, &seat) == SHMRING_OK && !seat.alive);
		shmring_close(r);
	}
	swept = sweep_nursery(&files);
	CHECK_IS(swept, files);
	CHECK(files <= 1);
	CHECK_IS(shmring_create(nursery(ring_path(), "ring"), &made, NULL), SHMRING_OK);
	CHECK(unlink(nursery(ring_path(), "ring")) == 0 && rmdir(nursery(ring_path(), "")) == 0);
}

static const struct operation operations[] = {
    {.name = "join", .build = build_six, .act = act_join},
    {.name = "join a new ephemeral branch", .build = build_six, .act = act_join_ephemeral},
    {.name = "leave with leases", .build = build_six, .enter = enter_with_leases, .act = act_leave, .held = 0xf},
    {.name = "leave with leases for others",
     .build = build_six,
     .enter = enter_with_leases,
     .act = act_abandon,
     .held = 0xf},
    {.name = "leave with leases, without the admin lock",
     .build = build_six,
     .enter = enter_with_leases,
     .act = act_give_up,
     .held = 0xf},
    {.name = "attach", .build = build_six, .enter = close_handle, .act = act_attach},
    {.name = "close", .build = build_six, .act = close_handle},
    {.name = "open and close a producer", .build = build_six, .act = act_open_close},
    {.name = "create", .build = build_six, .enter = enter_nursery, .act = act_create, .check = check_created},
    {.name = "create without O_TMPFILE",
     .build = build_six,
     .enter = enter_without_tmpfile,
     .act = act_create,
     .check = check_created},
    {.name = "recover", .build = build_dead, .act = act_recover, .alone = true, .held = 0xf},
    {.name = "recover two of one branch",
     .build = build_dead_beside_an_orphan,
     .act = act_recover,
     .alone = true,
     .held = SIX_WAITING},
    {.name = "join where orphans have all seats",
     .build = build_orphan,
     .enter = enter_all_seats,
     .act = act_join,
     .alone = true,
     .held = 0xf},
    {.name = "join that recovers", .build = build_dead, .act = act_join, .alone = true, .held = 0xf},
};

const struct subject coming_and_going = {operations, sizeof operations / sizeof *operations};
