//! How a product is divided: parts that stay in the caches, and tasks for threads.

use super::Size;
use super::panel::{LEFT, RIGHT, left_length};
use crate::kernels::LANES;

/// Bytes of packed right panels, which all threads read from the last-level cache.
const RIGHT_BYTES: usize = 1 << 20;
/// Bytes of sums between blocks of the inner dimension, where the result cannot keep them.
const SUMS_BYTES: usize = 1 << 20;
/// Rows of a task: its packed rows stay in the second-level cache.
const TASK_ROWS: usize = 8 * LEFT;
/// Tasks per thread that are enough to keep all threads busy to the end.
const TASKS: usize = 8;
/// So few rows are packed once, and each task packs a panel of columns for itself.
const FEW_ROWS: usize = 2 * LEFT;
const FEW_ROWS_STEPS: usize = 2048;
/// A thread is not worth its start below this many steps of a vector.
const THREAD_STEPS: usize = 20_000;

/// Numbers in a block of the inner dimension.
fn inner_limit(element_bytes: usize) -> usize {
    2048 / element_bytes
}

#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    pub size: Size,
    pub threads: usize,
    /// Whether tasks are panels of columns.
    pub few_rows: bool,
    /// Numbers of the inner dimension in a block, even unless there is one block.
    pub inner: usize,
    /// Steps in a block.
    pub steps: usize,
    /// Columns whose packed numbers are in memory at once.
    pub columns: usize,
    /// Rows for which these columns are packed.
    pub rows: usize,
    /// Rows of a task.
    pub task_rows: usize,
    /// Whether sums between blocks need scratch memory.
    pub keep_sums: bool,
}

impl Blocks {
    /// `numbers` are those in a step; `sums_in_place` if the result is `f32`.
    pub fn new(
        size: Size,
        element_bytes: usize,
        numbers: usize,
        sums_in_place: bool,
        threads: usize,
    ) -> Blocks {
        let work = size.inner * size.columns * (size.rows + LANES / 2) / LANES / numbers;
        let threads = threads.min(work / THREAD_STEPS).max(1);
        let all_steps = size.inner.div_ceil(numbers);
        let few_rows = size.rows <= FEW_ROWS && all_steps <= FEW_ROWS_STEPS;
        let blocks = if few_rows { 1 } else { size.inner.div_ceil(inner_limit(element_bytes)).max(1) };
        let inner = if blocks == 1 { size.inner } else { size.inner.div_ceil(blocks).next_multiple_of(2) };
        let steps = inner.div_ceil(numbers);
        let keep_sums = blocks > 1 && !sums_in_place;
        let widest = RIGHT_BYTES / size_of::<f32>() / steps.max(1) / RIGHT * RIGHT;
        // Parts of equal width.
        let parts = size.columns.div_ceil(widest.max(RIGHT)).max(1);
        let columns = if few_rows { RIGHT } else { size.columns.div_ceil(parts).next_multiple_of(RIGHT) };
        let rows = if keep_sums {
            (SUMS_BYTES / size_of::<f32>() / columns / TASK_ROWS * TASK_ROWS).max(TASK_ROWS)
        } else {
            size.rows
        };
        let rows = rows.min(size.rows.next_multiple_of(LEFT)).max(LEFT);
        let task_rows = rows.div_ceil(TASKS * threads).next_multiple_of(LEFT).min(TASK_ROWS);
        let task_rows = if threads == 1 { TASK_ROWS.min(rows.next_multiple_of(LEFT)) } else { task_rows };
        Blocks { size, threads, few_rows, inner, steps, columns, rows, task_rows, keep_sums }
    }

    /// Into how many parts the columns are divided for tasks, if there are so many rows.
    pub fn column_groups(&self, rows: usize, panels: usize) -> usize {
        if self.threads == 1 {
            return 1;
        }
        (TASKS * self.threads / rows.div_ceil(self.task_rows)).clamp(1, panels)
    }

    /// Numbers that all threads share: packed columns, or rows if these are few.
    pub fn shared(&self) -> usize {
        if self.few_rows {
            self.size.rows.div_ceil(LEFT) * left_length(self.steps)
        } else {
            self.columns * self.steps
        }
    }

    pub fn sums(&self) -> usize {
        if self.keep_sums { self.rows.next_multiple_of(LEFT) * self.columns } else { 0 }
    }

    /// Numbers of each thread: packed rows, or columns.
    pub fn own(&self) -> usize {
        if self.few_rows { RIGHT * self.steps } else { self.task_rows / LEFT * left_length(self.steps) }
    }

    pub fn scratch(&self) -> usize {
        (self.shared() + self.sums() + self.threads * self.own()) / LANES
    }
}

/// Numbers of scratch memory that are enough for a product of this size, and for one of fewer rows or less inner
/// dimension, whatever the elements are.
pub fn most_scratch(size: Size, sums_in_place: bool, threads: usize) -> usize {
    let panels = |rows: usize, most: usize| rows.div_ceil(LEFT).min(most / LEFT);
    let few = size.inner.min(FEW_ROWS_STEPS);
    let few_rows = panels(size.rows, FEW_ROWS) * left_length(few) + threads * RIGHT * few;
    if size.rows <= FEW_ROWS && size.inner <= FEW_ROWS_STEPS {
        return few_rows;
    }
    let steps = size.inner.min(inner_limit(size_of::<u16>()));
    let columns = size.columns.next_multiple_of(RIGHT);
    let right = (RIGHT_BYTES / size_of::<f32>()).max(RIGHT * steps).min(columns * steps);
    let left = threads * panels(size.rows, TASK_ROWS) * left_length(steps);
    let kept = !sums_in_place && size.inner > steps;
    let sums = (SUMS_BYTES / size_of::<f32>()).min(size.rows.next_multiple_of(LEFT) * columns);
    few_rows.max(right + left + if kept { sums } else { 0 })
}
