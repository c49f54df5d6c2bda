/* Files written here open with the Python package `safetensors`, and the other way round. Skipped with a
 * message where the package is not installed; BLURRY_PYTHON names the interpreter to use. */
#include "support/test.h"

#include "base/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    KNOWN_TO_PYTHON = SAFETENSORS_F8_E8M0
}; /* the types after F8_E4M3 are newer than many installed packages */

static void write_here(const char *folder)
{
    static uint8_t bytes[KNOWN_TO_PYTHON][48];
    char path[128], names[KNOWN_TO_PYTHON][40];
    safetensors_tensor tensors[KNOWN_TO_PYTHON];
    for (int d = 0; d < KNOWN_TO_PYTHON; d++) {
        const char *dtype = safetensors_dtype_name((safetensors_dtype)d);
        for (size_t i = 0; i < sizeof bytes[d]; i++) bytes[d][i] = (uint8_t)((i * 7 + strlen(dtype)) % 2);
        snprintf(names[d], sizeof names[d], "tensor \xe2\x82\xac %s", dtype);
        tensors[d] = (safetensors_tensor){
            .name = names[d], .dtype = (safetensors_dtype)d, .rank = 3, .shape = {2, 1, 3}, .data = bytes[d]};
    }
    const char *const keys[] = {"mixer", "note"}, *const values[] = {"blurry,softmax",
                                                                     "two\nlines \"\xe2\x82\xac\""};
    snprintf(path, sizeof path, "%s/here.safetensors", folder);
    assert_ok(safetensors_save(path, tensors, KNOWN_TO_PYTHON, keys, values, 2));
}

static void read_there(const char *folder)
{
    char path[128];
    snprintf(path, sizeof path, "%s/there.safetensors", folder);
    safetensors *file;
    assert_ok(safetensors_open(&file, path));
    assert_int_equal(safetensors_count(file), 12 * 4);
    assert_string_equal(safetensors_metadata(file, "from"), "python \xe2\x82\xac");
    double wide[24];
    float single[24];
    assert_ok(safetensors_read_f64(file, "float64.(2, 3, 4)", (int64_t[]){2, 3, 4}, 3, 24, wide));
    assert_ok(safetensors_read_f32(file, "float16.(2, 3, 4)", (int64_t[]){2, 3, 4}, 3, 24, single));
    for (int i = 0; i < 24; i++) assert_true(wide[i] == i % 2 && single[i] == (float)(i % 2));
    assert_ok(safetensors_read_f64(file, "float32.()", NULL, 0, 1, wide));
    assert_ok(safetensors_read_f64(file, "float32.(0,)", (int64_t[]){0}, 1, 0, wide));
    assert_int_equal(safetensors_find(file, "bool.(5,)")->dtype, SAFETENSORS_BOOL);
    assert_int_equal(safetensors_find(file, "uint64.(5,)")->bytes, 40);
    safetensors_close(&file);
}

static void python_reads_and_writes_the_same_files(void **state)
{
    (void)state;
    char folder[] = "/tmp/blurry-python-XXXXXX", command[1024];
    assert_non_null(mkdtemp(folder));
    write_here(folder);
    const char *python = getenv("BLURRY_PYTHON");
    snprintf(command, sizeof command, "'%s' '%s/support/safetensors_interop.py' '%s' %d",
             python ? python : "python3", test_data(), folder, KNOWN_TO_PYTHON);
    int status = system(command);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == 0) read_there(folder);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
    if (code == 77 || code == 127) {
        print_message(
            "skipped: no Python with the package `safetensors` here (pip install safetensors numpy)\n");
        skip();
    }
    assert_int_equal(code, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(python_reads_and_writes_the_same_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
