/* Files and memory: reading with a limit, and saves that survive kill -9, full disks and each other. */
#include "support/test.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/safetensors.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char folder[64];

static const char *in_folder(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int entries(const char *path)
{
    DIR *d = opendir(path);
    int count = -2; /* . and .. */
    while (readdir(d)) count++;
    closedir(d);
    return count;
}

static void assert_content(const char *path, const char *expected)
{
    void *data;
    size_t length;
    assert_ok(file_read(path, 1000, &data, &length));
    assert_int_equal(length, strlen(expected));
    assert_memory_equal(data, expected, length + 1); /* with the 0 after the end */
    free(data);
}

static void whole_files(void **state)
{
    (void)state;
    const char *path = in_folder("whole");
    void *data;
    size_t length;
    assert_ok(file_save_bytes(path, "old content", 11));
    assert_content(path, "old content");
    assert_ok(file_save_bytes(path, "new", 3));
    assert_content(path, "new");
    assert_ok(file_save_bytes(path, NULL, 0));
    assert_content(path, "");
    assert_ok(file_save_bytes(path, "12345", 5));
    assert_ok(file_read(path, 5, &data, &length));
    free(data);
    assert_fails(file_read(path, 4, &data, &length), BLURRY_E_FORMAT, "5 bytes are more than the 4 allowed");
    assert_fails(file_read(in_folder("none"), 9, &data, &length), BLURRY_E_IO, "No such file or directory");
    assert_fails(file_read(folder, 9, &data, &length), BLURRY_E_IO, "not a regular file");
    assert_fails(file_read("/dev/zero", 9, &data, &length), BLURRY_E_IO, "not a regular file");
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    assert_fails(file_read(in_folder("pipe"), 9, &data, &length), BLURRY_E_IO, "not a regular file");
    assert_int_equal(unlink(in_folder("pipe")), 0);
    assert_int_equal(unlink(in_folder("whole")), 0);
    assert_int_equal(entries(folder), 0);
}

static void saves_keep_mode_and_links(void **state)
{
    (void)state;
    char target[128];
    snprintf(target, sizeof target, "%s/target", folder);
    assert_ok(file_save_bytes(target, "a", 1));
    assert_int_equal(chmod(target, 0640), 0);
    assert_int_equal(symlink("target", in_folder("link")), 0);
    assert_ok(file_save_bytes(in_folder("link"), "b", 1));
    assert_content(target, "b");
    struct stat info;
    assert_int_equal(lstat(in_folder("link"), &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(stat(target, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);
    assert_int_equal(unlink(in_folder("link")) + unlink(target), 0);
}

static void bad_places_are_refused(void **state)
{
    (void)state;
    assert_fails(file_save_bytes(in_folder("no/such/file"), "x", 1), BLURRY_E_IO,
                 "No such file or directory");
    assert_fails(file_save_bytes(folder, "x", 1), BLURRY_E_IO, "not a regular file");
    assert_fails(file_save_bytes("/dev/full", "x", 1), BLURRY_E_IO, "/dev/full: cannot save");
    assert_ok(file_save_bytes(in_folder("file"), "x", 1));
    assert_fails(file_make_folders(in_folder("file/sub")), BLURRY_E_IO,
                 "/file: cannot make the folder: File exists");
    assert_fails(file_make_folders(in_folder("file")), BLURRY_E_IO, "File exists");
    assert_int_equal(unlink(in_folder("file")), 0);
    assert_int_equal(entries(folder), 0);
}

static void folders_and_names(void **state)
{
    (void)state;
    assert_ok(file_make_folders(in_folder("a/b//c/")));
    assert_ok(file_make_folders(in_folder("a/b/c")));
    assert_true(file_is_folder(in_folder("a/b/c")) && file_exists(in_folder("a")));
    assert_false(file_exists(in_folder("a/x")));
    assert_int_equal(rmdir(in_folder("a/b/c")) + rmdir(in_folder("a/b")) + rmdir(in_folder("a")), 0);
    char *joined = file_join("x", "y");
    assert_string_equal(joined, "x/y");
    free(joined);
    joined = file_join("x/", "y");
    assert_string_equal(joined, "x/y");
    free(joined);
    joined = file_join("", "y");
    assert_string_equal(joined, "y");
    free(joined);
}

/* ---- saving under attack ---- */

enum { TENSORS = 4, COLUMNS = 1 << 16 };

/* A checkpoint whose every number is `generation`: a mixture of two generations would show. */
static blurry_status save_generation(const char *path, float generation, float *numbers)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d"};
    char text[32];
    const char *keys[] = {"generation"}, *values[] = {text};
    safetensors_tensor tensors[TENSORS];
    snprintf(text, sizeof text, "%.0f", (double)generation);
    for (int i = 0; i < COLUMNS; i++) numbers[i] = generation;
    for (int i = 0; i < TENSORS; i++)
        tensors[i] = (safetensors_tensor){
            .name = names[i], .dtype = SAFETENSORS_F32, .rank = 1, .shape = {COLUMNS}, .data = numbers};
    return safetensors_save(path, tensors, TENSORS, keys, values, 1);
}

/* The generation of a checkpoint that is in order. */
static float check_generation(const char *path)
{
    safetensors *file;
    assert_ok(safetensors_open(&file, path));
    assert_int_equal(safetensors_count(file), TENSORS);
    float generation = strtof(safetensors_metadata(file, "generation"), NULL);
    for (size_t t = 0; t < TENSORS; t++) {
        const float *numbers = safetensors_at(file, t)->data;
        for (int i = 0; i < COLUMNS; i++)
            if (numbers[i] != generation)
                fail_msg("tensor %zu holds %g, not %g", t, (double)numbers[i], (double)generation);
    }
    safetensors_close(&file);
    return generation;
}

static void save_for_ever(const char *path, float generation)
{
    float *numbers = malloc(COLUMNS * sizeof *numbers);
    for (;; generation++)
        if (save_generation(path, generation, numbers) != BLURRY_OK) _exit(3);
}

static void killing_a_save_leaves_a_whole_file(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/killed.safetensors", folder);
    float *numbers = malloc(COLUMNS * sizeof *numbers);
    assert_ok(save_generation(path, 1, numbers));
    unsigned seed = 7;
    float generation = 1;
    int interrupted = 0;
    double reach = 5e6; /* nanoseconds until the kill at most; follows the time a save takes here */
    for (int round = 0; round < 200; round++) {
        pid_t child = fork();
        if (child == 0) save_for_ever(path, generation + 1);
        double delay = reach * (rand_r(&seed) / (RAND_MAX + 1.0));
        struct timespec wait = {(time_t)(delay / 1e9), (long)fmod(delay, 1e9)};
        nanosleep(&wait, NULL);
        kill(child, SIGKILL);
        int status = 0;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        float now = check_generation(path);
        assert_true(now >= generation);
        reach *= now > generation ? 0.93 : 1.1;
        generation = now;
        interrupted += file_exists(in_folder("killed.safetensors.blurry-tmp"));
    }
    print_message("200 kills, %d of them in the middle of a save; %.0f saves were completed\n", interrupted,
                  (double)generation);
    assert_true(interrupted > 20 && generation > 20); /* the kills really fell into saves, early and late */
    assert_ok(save_generation(path, generation + 1, numbers));
    assert_int_equal(entries(folder), 1); /* what the killed ones left was used up */
    free(numbers);
    unlink(path);
}

static void *save_many(void *path)
{
    float *numbers = malloc(COLUMNS * sizeof *numbers);
    for (int i = 0; i < 20; i++)
        if (save_generation(path, (float)i, numbers) != BLURRY_OK) return path;
    free(numbers);
    return NULL;
}

static void saves_of_one_path_take_turns(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/shared.safetensors", folder);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, save_many, path);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    check_generation(path);
    assert_int_equal(entries(folder), 1);
    unlink(path);
}

/* In a child, so that limits and mounts end with it. Exit code 77: not possible here. */
static int in_child(int (*body)(void))
{
    pid_t child = fork();
    if (child == 0) _exit(body());
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* 0 when a save that cannot succeed fails as it should: message, old file kept, nothing left behind. */
static int failing_save_keeps_old(const char *where, float old, const char *reason)
{
    char path[128];
    snprintf(path, sizeof path, "%s/full.safetensors", where);
    float *numbers = malloc(COLUMNS * sizeof *numbers);
    for (int i = 0; i < 3; i++) {
        if (save_generation(path, old + 1, numbers) != BLURRY_E_IO) return 10;
        if (!strstr(blurry_last_error(), reason) || !strstr(blurry_last_error(), path)) return 11;
        if (entries(where) != 1) return 12;
        if (check_generation(path) != old) return 13;
    }
    free(numbers);
    return 0;
}

static int limited_file_size(void)
{
    struct rlimit limit = {COLUMNS * 6, COLUMNS * 6};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 77;
    return failing_save_keeps_old(folder, 5, "File too large");
}

static int full_disk(void)
{
    /* Own namespaces let an ordinary user mount a small file system where the kernel allows it. */
    int own = unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    if (!own || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return 77;
    char place[128];
    snprintf(place, sizeof place, "%s/disk", folder);
    /* Room for one checkpoint of 1 MiB and a half. */
    if (mkdir(place, 0700) != 0 || mount("tmpfs", place, "tmpfs", 0, "size=1536k") != 0) return 77;
    char path[160];
    snprintf(path, sizeof path, "%s/full.safetensors", place);
    float *numbers = malloc(COLUMNS * sizeof *numbers);
    if (save_generation(path, 5, numbers) != BLURRY_OK) return 20;
    free(numbers);
    return failing_save_keeps_old(place, 5, "No space left on device");
}

static void a_failing_write_keeps_the_old_file(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/full.safetensors", folder);
    float *numbers = malloc(COLUMNS * sizeof *numbers);
    assert_ok(save_generation(path, 5, numbers));
    free(numbers);
    assert_int_equal(in_child(limited_file_size), 0);
    assert_true(check_generation(path) == 5);
    unlink(path);
}

static void a_full_disk_keeps_the_old_file(void **state)
{
    (void)state;
    int code = in_child(full_disk);
    if (code == 77) {
        print_message("skipped: this system does not let us mount a small file system\n");
        rmdir(in_folder("disk"));
        skip();
    }
    assert_int_equal(code, 0);
    rmdir(in_folder("disk"));
}

static void discarded_saves_leave_nothing(void **state)
{
    (void)state;
    file_save save;
    assert_ok(file_save_begin(&save, in_folder("gone")));
    assert_ok(file_save_write(&save, "x", 1));
    file_save_discard(&save);
    file_save_discard(&save);
    assert_int_equal(entries(folder), 0);
}

static void memory_is_checked(void **state)
{
    (void)state;
    void *memory;
    assert_ok(memory_alloc(&memory, 3, 7, "three"));
    assert_int_equal((uintptr_t)memory % 64, 0);
    for (int i = 0; i < 64; i++) assert_int_equal(((char *)memory)[i], 0);
    memory_free(memory);
    assert_ok(memory_alloc(&memory, 0, 8, "none"));
    assert_non_null(memory);
    memory_free(memory);
    memory_free(NULL);
    assert_fails(memory_alloc(&memory, SIZE_MAX / 4, 8, "huge"), BLURRY_E_MEMORY, "huge: ");
    assert_null(memory);
    assert_fails(memory_alloc(&memory, SIZE_MAX - 10, 1, "rounding"), BLURRY_E_MEMORY, "rounding: ");
    int64_t count = 0;
    assert_true(memory_count((int64_t[]){2, 3, 4}, 3, &count) && count == 24);
    assert_true(memory_count(NULL, 0, &count) && count == 1);
    assert_true(memory_count((int64_t[]){2, 0}, 2, &count) && count == 0);
    assert_false(memory_count((int64_t[]){-1}, 1, &count));
    assert_false(memory_count((int64_t[]){INT64_MAX, 2, 0}, 3, &count));
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/blurry-file-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder); /* fails where a test left something */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_files),
        cmocka_unit_test(saves_keep_mode_and_links),
        cmocka_unit_test(bad_places_are_refused),
        cmocka_unit_test(folders_and_names),
        cmocka_unit_test(discarded_saves_leave_nothing),
        cmocka_unit_test(killing_a_save_leaves_a_whole_file),
        cmocka_unit_test(saves_of_one_path_take_turns),
        cmocka_unit_test(a_failing_write_keeps_the_old_file),
        cmocka_unit_test(a_full_disk_keeps_the_old_file),
        cmocka_unit_test(memory_is_checked),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
