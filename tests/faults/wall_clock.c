/* A wall clock that jumps: LD_PRELOAD for one process; FAULTS_CLOCK names a file of 8 bytes, nanoseconds to add.
   The monotonic clock stays right, as it does on a machine whose time is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *shift;

__attribute__((constructor)) static void open_clock(void) {
    const char *name = getenv("FAULTS_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) shift = page;
    close(file);
}

static void add(struct timespec *at) {
    int64_t all = at->tv_sec * 1000000000LL + at->tv_nsec + *shift;
    at->tv_sec = all / 1000000000LL;
    at->tv_nsec = all % 1000000000LL;
}

int clock_gettime(clockid_t which, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(which, at);
    if (!result && shift && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) add(at);
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
