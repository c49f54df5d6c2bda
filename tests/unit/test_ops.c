/* Every operation of the device table, in every table of this machine: against the double reference,
 * gradients against finite differences, same bits for any thread count, splits with carried state, causality.
 */
#include "support/ops_case.h"
#include "support/test.h"

static void coverage(void **state)
{
    (void)state;
    op_coverage_check();
}

static void creation_refuses_nonsense(void **state)
{
    (void)state;
    device *dev = NULL;
    assert_fails(device_create(&dev, &(device_options){.threads = -1}), BLURRY_E_INVALID, "threads is -1");
    assert_fails(device_create(&dev, &(device_options){.dtype = 7}), BLURRY_E_INVALID, "dtype is 7");
    assert_fails(device_create(&dev, &(device_options){.dtype = BLURRY_BF16}), BLURRY_E_UNSUPPORTED, "bf16");
    assert_fails(device_create(&dev, NULL), BLURRY_E_INVALID, "options is NULL");
    assert_null(dev);
    device_destroy(&dev);
}

/* test_ops [PATTERN]: only the families whose names match. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creation_refuses_nonsense),
        cmocka_unit_test(ops_elementwise),
        cmocka_unit_test(ops_products),
        cmocka_unit_test(ops_norms),
        cmocka_unit_test(ops_embedding),
        cmocka_unit_test(ops_rows),
        cmocka_unit_test(ops_head),
        cmocka_unit_test(ops_optimiser),
        cmocka_unit_test(ops_rope),
        cmocka_unit_test(ops_rope_join),
        cmocka_unit_test(ops_convolution),
        cmocka_unit_test(ops_attention),
        cmocka_unit_test(ops_gla),
        cmocka_unit_test(ops_slots),
        cmocka_unit_test(ops_gdn),
        cmocka_unit_test(ops_ssm),
        cmocka_unit_test(coverage),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
