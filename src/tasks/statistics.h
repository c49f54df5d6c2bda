/* The numbers that describe each task's data (blurry_task_statistics). */
#ifndef BLURRY_TASKS_STATISTICS_H
#define BLURRY_TASKS_STATISTICS_H
#include "tasks/task.h"

blurry_status statistics_mqar(const blurry_task *task, blurry_split split, int64_t samples,
                              task_statistics *to);
blurry_status statistics_regbench(const blurry_task *task, blurry_split split, int64_t samples,
                                  task_statistics *to);
blurry_status statistics_text(const blurry_task *task, blurry_split split, int64_t samples,
                              task_statistics *to);

#endif
