/* Leaving while somebody who is stopped has the admin lock: one wait for all handles of a
 * process. Time passes by naps alone. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum { HANDLES = 10 };
#define SECOND INT64_C(1000000000)

static _Atomic int64_t slept;

/* In place of libc's. */
int nanosleep(const struct timespec *time, struct timespec *left)
{
	(void)left;
	slept += time->tv_sec * SECOND + time->tv_nsec;
	return 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int64_t ns = slept;

	if (clock != CLOCK_MONOTONIC)
		return (int)syscall(SYS_clock_gettime, clock, now);
	*now = (struct timespec){.tv_sec = 1000 + ns / SECOND, .tv_nsec = ns % SECOND};
	return 0;
}

struct handle {
	shmring *r;
	shmring_producer *p;
	shmring_consumer *m;
};

/* Closed, it is free again. */
static int lock_admin(const char *path)
{
	int fd = open(path, O_RDWR);

	NEED(fd >= 0 && lock_byte(fd, ADMIN_LOCK_OFFSET));
	slept = 0;
	return fd;
}

static void check_waited_once(void)
{
	CHECK(slept >= 5 * SECOND);
	CHECK(slept < 6 * SECOND);
}

/* On a new ring. */
static shmring *open_handles(struct handle *h, size_t n)
{
	shmring *r = ring_with(&(struct shmring_options){.slots = 1024, .participants = 60});

	for (size_t i = 0; i < n; i++) {
		h[i].r = ring_again(ring_path());
		h[i].p = producer_of(h[i].r);
		h[i].m = consumer_of(h[i].r, "b");
	}
	return r;
}

static void close_handle(struct handle *h)
{
	shmring_consumer_close(h->m);
	shmring_producer_close(h->p);
	shmring_close(h->r);
}

static void *close_in_thread(void *h)
{
	close_handle(h);
	return NULL;
}

TEST(ten_handles_that_close_wait_once)
{
	struct handle h[HANDLES];
	shmring *r = open_handles(h, HANDLES);
	unsigned found = 0;
	int fd = lock_admin(ring_path());
	for (int i = 0; i < HANDLES; i++)
		close_handle(&h[i]);
	check_waited_once();
	close(fd);
	CHECK_IS(shmring_recover(r, &found), SHMRING_OK); /* they have left as if dead */
	CHECK(found >= HANDLES);
	CHECK_IS(seats_in_use(r), 1);
}

/* Hands leases back like a binding whose users have dropped them. */
TEST(who_hands_back_waits_no_more_than_once)
{
	struct handle h[HANDLES];
	struct shmring_lease l[HANDLES];
	int fd;

	push_n(producer_of(open_handles(h, HANDLES)), 0, HANDLES);
	for (int i = 0; i < HANDLES; i++)
		l[i] = lease_of(h[i].m, 1);
	fd = lock_admin(ring_path());
	for (int i = 0; i < HANDLES; i++) {
		int64_t since = clock_ns();

		while (shmring_nack(h[i].m, l[i].first, l[i].end) == SHMRING_CONTENDED &&
		       shmring_nack_again(h[i].m, since))
			nap_ms(1);
		shmring_consumer_abandon(h[i].m);
		h[i].m = NULL;
		close_handle(&h[i]);
	}
	check_waited_once();
	close(fd);
}

TEST(threads_that_close_at_once_wait_together)
{
	struct handle h[HANDLES];
	pthread_t thread[HANDLES];
	int fd;

	(void)open_handles(h, HANDLES);
	fd = lock_admin(ring_path());
	for (int i = 0; i < HANDLES; i++)
		NEED(pthread_create(&thread[i], NULL, close_in_thread, &h[i]) == 0);
	for (int i = 0; i < HANDLES; i++)
		pthread_join(thread[i], NULL);
	CHECK(slept < 6 * SECOND);
	close(fd);
}

TEST(who_could_not_join_does_not_wait_again_to_close)
{
	struct handle h[2];
	shmring_producer *p;
	int fd;

	(void)open_handles(h, 2);
	fd = lock_admin(ring_path());
	CHECK_IS(shmring_producer_open(h[1].r, "late", &p), SHMRING_CONTENDED);
	CHECK_IS(shmring_producer_open(h[1].r, "late", &p), SHMRING_CONTENDED);
	CHECK(slept >= 10 * SECOND); /* each joining call waits again, because the lock's holder may go on */
	close_handle(&h[0]);
	close_handle(&h[1]);
	CHECK(slept < 11 * SECOND);
	close(fd);
}

TEST(once_the_lock_was_had_a_close_waits_again)
{
	struct handle h[3];
	int fd;

	(void)open_handles(h, 3);
	fd = lock_admin(ring_path());
	close_handle(&h[0]);
	close(fd);
	close_handle(&h[1]); /* in order */
	fd = lock_admin(ring_path());
	close_handle(&h[2]);
	check_waited_once();
	close(fd);
}

TEST(another_ring_is_another_matter)
{
	char other[80];
	shmring_producer *p;
	struct handle h;
	int fd, other_fd;

	snprintf(other, sizeof other, "%s.other", ring_path());
	NEED(shmring_create(other, &(struct shmring_options){.slots = 1024}, NULL) == SHMRING_OK);
	p = producer_of(ring_again(other));
	(void)open_handles(&h, 1);
	fd = lock_admin(ring_path());
	close_handle(&h);
	other_fd = lock_admin(other);
	shmring_producer_close(p);
	CHECK(slept >= 5 * SECOND);
	close(other_fd);
	close(fd);
	unlink(other);
}
