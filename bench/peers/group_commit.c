/* The ceiling of group commit: processes append to one file and share its flushes.
 *
 * Usage: group_commit PATH WRITERS RECORDS SIZE. Prints "ready", waits for a line, lets each writer
 * append RECORDS records of SIZE bytes, each durable before the next, and prints "done".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    pthread_mutex_t append, flush;
    int64_t end, durable;
    uint32_t rounds, go, waiting;
} shared_state;

static void die(const char *what) { perror(what); exit(1); }

static void sleep_on(uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void wake_all(uint32_t *word) {
    __atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void flush(shared_state *s, int fd, int64_t mine) {
    for (;;) {
        uint32_t seen = __atomic_load_n(&s->rounds, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&s->durable, __ATOMIC_SEQ_CST) >= mine) return;
        if (pthread_mutex_trylock(&s->flush)) {
            sleep_on(&s->rounds, seen);
            continue;
        }
        if (__atomic_load_n(&s->durable, __ATOMIC_SEQ_CST) < mine) {
            int64_t target = __atomic_load_n(&s->end, __ATOMIC_SEQ_CST);
            if (fdatasync(fd) < 0) die("fdatasync");
            __atomic_store_n(&s->durable, target, __ATOMIC_SEQ_CST);
        }
        pthread_mutex_unlock(&s->flush);
        wake_all(&s->rounds);   /* after the unlock: a writer that found the mutex taken tries again */
    }
}

static void write_records(shared_state *s, const char *path, int records, size_t size) {
    int fd = open(path, O_WRONLY);
    char *record = calloc(1, size);
    if (fd < 0 || !record) die(path);
    __atomic_add_fetch(&s->waiting, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&s->go, __ATOMIC_SEQ_CST)) sleep_on(&s->go, 0);
    for (int i = 0; i < records; i++) {
        pthread_mutex_lock(&s->append);
        if (pwrite(fd, record, size, s->end) != (ssize_t)size) die("pwrite");
        int64_t mine = __atomic_add_fetch(&s->end, (int64_t)size, __ATOMIC_SEQ_CST);
        pthread_mutex_unlock(&s->append);
        flush(s, fd, mine);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    int writers = atoi(argv[2]), failed = 0;
    int fd = open(argv[1], O_CREAT | O_WRONLY, 0600);
    shared_state *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (fd < 0 || s == MAP_FAILED) die(argv[1]);
    pthread_mutexattr_t between;
    pthread_mutexattr_init(&between);
    pthread_mutexattr_setpshared(&between, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&s->append, &between);
    pthread_mutex_init(&s->flush, &between);
    for (int i = 0; i < writers; i++) {
        pid_t pid = fork();
        if (pid < 0) die("fork");
        if (!pid) {
            write_records(s, argv[1], atoi(argv[3]), (size_t)atoi(argv[4]));
            _exit(0);
        }
    }
    while (__atomic_load_n(&s->waiting, __ATOMIC_SEQ_CST) < (uint32_t)writers) usleep(1000);
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) failed = 1;
    wake_all(&s->go);
    for (int status; wait(&status) > 0;) failed |= status != 0;
    puts("done");
    return failed;
}
