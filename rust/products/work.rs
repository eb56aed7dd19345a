//! The tasks of a product, and the threads that do them.

use super::blocks::Blocks;
use super::merged::{Rounding, SHARED, merge};
use super::panel::{LEFT, Operand, RIGHT, Tile, add_product, left_length, prefetch};
use super::step::Step;
use crate::kernels::{Element, LANES, Line, Vector, load, store};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Panels of columns that a task packs.
const PACKED_AT_ONCE: usize = 4;

/// Where a product goes.
#[derive(Clone, Copy)]
pub struct Result<'a, T> {
    pub start: *mut T,
    pub added: Option<&'a [T]>,
}

/// Gradients in 8 bits to which a product is added.
#[derive(Clone, Copy)]
pub struct Merged {
    pub codes: *mut i8,
    pub exponents: *mut u8,
    pub rounding: Rounding,
}

/// What becomes of a product.
#[derive(Clone, Copy)]
pub enum Target<'a, T> {
    Result(Result<'a, T>),
    /// The sums go on from what is there.
    Sums(*mut f32),
    Merged(Merged),
}

/// A product of `left` (rows, inner) and `right` (inner, columns).
pub struct Work<'a, T, W> {
    left: Operand<'a, T>,
    right: Operand<'a, W>,
    blocks: Blocks,
    target: Target<'a, T>,
    /// Where sums are between blocks of the inner dimension, and their stride.
    sums: Option<(*mut f32, usize)>,
    shared: *mut f32,
    own: *mut f32,
    next: AtomicUsize,
    done: AtomicUsize,
    started: AtomicUsize,
}

// SAFETY: tasks write disjoint parts, and read what tasks of earlier stages wrote.
unsafe impl<T: Send + Sync, W: Send + Sync> Sync for Work<'_, T, W> {}

impl<'a, T: Element, W: Element> Work<'a, T, W> {
    /// # Safety
    /// The target has the rows and columns of the product and stays valid.
    pub unsafe fn new(
        left: Operand<'a, T>,
        right: Operand<'a, W>,
        blocks: Blocks,
        target: Target<'a, T>,
        scratch: &'a mut [Line],
    ) -> Work<'a, T, W> {
        assert!(scratch.len() >= blocks.scratch(), "scratch memory for a product");
        let shared: *mut f32 = scratch.as_mut_ptr().cast();
        // SAFETY: within the scratch memory.
        let (kept, own) =
            unsafe { (shared.add(blocks.shared()), shared.add(blocks.shared() + blocks.sums())) };
        let sums = match target {
            Target::Sums(grad) => Some((grad, blocks.size.columns)),
            Target::Result(result) if size_of::<T>() == size_of::<f32>() => {
                Some((result.start.cast(), blocks.size.columns))
            }
            _ if blocks.keep_sums => Some((kept, blocks.columns)),
            _ => None,
        };
        let zero = || AtomicUsize::new(0);
        let (next, done, started) = (zero(), zero(), zero());
        Work { left, right, blocks, target, sums, shared, own, next, done, started }
    }

    pub fn threads(&self) -> usize {
        self.blocks.threads
    }

    /// On each thread.
    #[inline(always)]
    pub fn work<S: Step>(&self) {
        let thread = self.started.fetch_add(1, Ordering::Relaxed);
        if thread >= self.blocks.threads {
            return;
        }
        // SAFETY: within the scratch memory.
        let own = unsafe { self.own.add(thread * self.blocks.own()) };
        let mut turns = Turns::new(&self.next, &self.done);
        if self.blocks.few_rows {
            self.few_rows::<S>(own, &mut turns);
        } else {
            self.many_rows::<S>(own, &mut turns);
        }
    }

    #[inline(always)]
    fn few_rows<S: Step>(&self, own: *mut f32, turns: &mut Turns) {
        let (size, steps) = (self.blocks.size, self.blocks.steps);
        // SAFETY (all below): a panel is written by one task, and read by later stages. Each thread has its own panel.
        while let Some(panel) = turns.take(size.rows.div_ceil(LEFT)) {
            let rows = panel * LEFT..size.rows.min((panel + 1) * LEFT);
            unsafe { self.pack_left::<S>(rows, 0..size.inner, panel_at(self.shared, panel, steps)) };
        }
        while let Some(panel) = turns.take(size.columns.div_ceil(RIGHT)) {
            let columns = panel * RIGHT..size.columns.min((panel + 1) * RIGHT);
            unsafe {
                let packed = std::slice::from_raw_parts_mut(own, steps * RIGHT);
                self.right.pack::<S, RIGHT>(columns.clone(), 0..size.inner, packed, 0);
                let mut row = 0;
                while row < size.rows {
                    let rows = row..size.rows.min(row + LEFT);
                    let left = panel_at(self.shared, row / LEFT, steps);
                    self.tile::<S>((left, own), steps, rows, columns.clone(), (0, 0), (true, true));
                    row += LEFT;
                }
            }
        }
    }

    #[inline(always)]
    fn many_rows<S: Step>(&self, own: *mut f32, turns: &mut Turns) {
        let (size, blocks) = (self.blocks.size, &self.blocks);
        let mut row = 0;
        while row < size.rows {
            let rows = row..size.rows.min(row + blocks.rows);
            let mut column = 0;
            while column < size.columns {
                let columns = column..size.columns.min(column + blocks.columns);
                let mut k = 0;
                // Once even if there is nothing to add.
                while k < size.inner.max(1) {
                    let inner = k..size.inner.min(k + blocks.inner);
                    self.block::<S>(rows.clone(), columns.clone(), inner, own, turns);
                    k += blocks.inner.max(1);
                }
                column += blocks.columns;
            }
            row += blocks.rows;
        }
    }

    /// A part of rows, columns and inner dimension, for which the columns are packed.
    #[inline(always)]
    fn block<S: Step>(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        inner: Range<usize>,
        own: *mut f32,
        turns: &mut Turns,
    ) {
        let steps = inner.len().div_ceil(S::NUMBERS);
        let ends = (inner.start == 0, inner.end == self.blocks.size.inner);
        let panels = columns.len().div_ceil(RIGHT);
        // SAFETY (all below): a panel is written by one task, and read by later stages. Each thread has its own panels.
        while let Some(task) = turns.take(panels.div_ceil(PACKED_AT_ONCE)) {
            let panel = task * PACKED_AT_ONCE;
            let column = columns.start + panel * RIGHT;
            let lanes = column..columns.end.min(column + PACKED_AT_ONCE * RIGHT);
            let length = steps * RIGHT;
            let packed = unsafe {
                let start = self.shared.add(panel * length);
                std::slice::from_raw_parts_mut(start, lanes.len().div_ceil(RIGHT) * length)
            };
            self.right.pack::<S, RIGHT>(lanes, inner.clone(), packed, length);
        }
        let groups = self.blocks.column_groups(rows.len(), panels);
        let height = self.blocks.task_rows;
        while let Some(task) = turns.take(rows.len().div_ceil(height) * groups) {
            let first = rows.start + task / groups * height;
            let end = rows.end.min(first + height);
            unsafe { self.pack_left::<S>(first..end, inner.clone(), own) };
            let group = task % groups;
            let mut panel = panels * group / groups;
            while panel < panels * (group + 1) / groups {
                let column = columns.start + panel * RIGHT;
                let right = unsafe { self.shared.add(panel * steps * RIGHT) };
                let mut row = first;
                while row < end {
                    let left = panel_at(own, (row - first) / LEFT, steps);
                    if row + LEFT < end {
                        self.prefetch_tile(row + LEFT..end.min(row + 2 * LEFT), column);
                    } else {
                        self.prefetch_tile(first..end.min(first + LEFT), column + RIGHT);
                    }
                    let (rows_here, columns_here) =
                        (row..end.min(row + LEFT), column..columns.end.min(column + RIGHT));
                    let corner = (rows.start, columns.start);
                    unsafe { self.tile::<S>((left, right), steps, rows_here, columns_here, corner, ends) };
                    row += LEFT;
                }
                panel += 1;
            }
        }
    }

    /// # Safety
    /// There is place for the panels, which no other thread uses.
    #[inline(always)]
    unsafe fn pack_left<S: Step>(&self, rows: Range<usize>, inner: Range<usize>, panels: *mut f32) {
        let length = left_length(inner.len().div_ceil(S::NUMBERS));
        // SAFETY: by the caller's word.
        let panels = unsafe { std::slice::from_raw_parts_mut(panels, rows.len().div_ceil(LEFT) * length) };
        self.left.pack::<S, LEFT>(rows, inner, panels, length);
    }

    /// Reads the place of the next tile into the cache.
    #[inline(always)]
    fn prefetch_tile(&self, rows: Range<usize>, column: usize) {
        let mut row = rows.start;
        while row < rows.end {
            let at = row * self.blocks.size.columns + column;
            if let Target::Result(result) = self.target {
                prefetch(result.start.wrapping_add(at));
                prefetch(result.start.wrapping_add(at + LANES));
            } else if let Some((sums, _)) = self.sums {
                prefetch(sums.wrapping_add(at));
                prefetch(sums.wrapping_add(at + LANES));
            }
            row += 1;
        }
    }

    /// Adds a product of two panels. `corner` is where the block begins, `ends` whether this is the first and the last
    /// block of the inner dimension.
    ///
    /// # Safety
    /// The panels have as many steps, and no other thread uses these numbers of the result.
    #[inline(always)]
    unsafe fn tile<S: Step>(
        &self,
        (left, right): (*mut f32, *mut f32),
        steps: usize,
        rows: Range<usize>,
        columns: Range<usize>,
        corner: (usize, usize),
        (first, last): (bool, bool),
    ) {
        let size = (rows.len(), columns.len());
        let panels = (left.cast_const(), right.cast_const());
        let from_zero = first && !matches!(self.target, Target::Sums(_));
        let at = self.sums.map(|(start, stride)| {
            let (row, column) = if self.blocks.keep_sums {
                (rows.start - corner.0, columns.start - corner.1)
            } else {
                (rows.start, columns.start)
            };
            // SAFETY: within the sums.
            (unsafe { start.add(row * stride + column) }, stride)
        });
        let finish = match self.target {
            Target::Result(result) => last && (size_of::<T>() < size_of::<f32>() || result.added.is_some()),
            Target::Sums(_) => false,
            Target::Merged(_) => last,
        };
        if let Some(at) = at
            && !finish
            && size == (LEFT, RIGHT)
        {
            // SAFETY: the whole tile is within the sums.
            return unsafe { add_product::<S>(panels, steps, at, size, from_zero) };
        }
        let mut tile: Tile = [0.0; LEFT * RIGHT];
        if let (Some((start, stride)), false) = (at, from_zero) {
            for (row, to) in tile.chunks_exact_mut(RIGHT).take(size.0).enumerate() {
                // SAFETY: within the sums.
                to[..size.1]
                    .copy_from_slice(unsafe { std::slice::from_raw_parts(start.add(row * stride), size.1) });
            }
        }
        // SAFETY: the tile is of full size.
        unsafe { add_product::<S>(panels, steps, (tile.as_mut_ptr(), RIGHT), size, from_zero) };
        for (row, from) in tile.chunks_exact(RIGHT).take(size.0).enumerate() {
            let place = (rows.start + row) * self.blocks.size.columns + columns.start;
            if let (Target::Merged(merged), true) = (self.target, finish) {
                let index = merged.rounding.first_index.wrapping_add(place as u32);
                // SAFETY: within the gradient, whose rows have whole blocks, as tiles have.
                unsafe {
                    let codes = &mut *merged.codes.add(place).cast();
                    let exponent = &mut *merged.exponents.add(place / SHARED);
                    merge(codes, exponent, from.first_chunk().unwrap(), merged.rounding.key, index);
                }
            } else if let (Target::Result(result), true) = (self.target, finish) {
                // SAFETY: within the result.
                let to = unsafe { std::slice::from_raw_parts_mut(result.start.add(place), size.1) };
                let added = result.added.map(|added| &added[place..place + size.1]);
                finish_row::<S::V, T>(from, added, to);
            } else if let Some((start, stride)) = at {
                // SAFETY: within the sums.
                unsafe { std::slice::from_raw_parts_mut(start.add(row * stride), size.1) }
                    .copy_from_slice(&from[..size.1]);
            }
        }
    }
}

#[inline(always)]
fn finish_row<V: Vector, T: Element>(sums: &[f32], added: Option<&[T]>, to: &mut [T]) {
    let mut at = 0;
    while at < to.len() {
        let mut vector = load::<V, f32>(sums, at);
        if let Some(added) = added {
            vector = vector + load::<V, T>(added, at);
        }
        store(vector, to, at);
        at += LANES;
    }
}

#[inline(always)]
fn panel_at(panels: *mut f32, panel: usize, steps: usize) -> *mut f32 {
    // SAFETY: callers have place for as many panels.
    unsafe { panels.add(panel * left_length(steps)) }
}

/// Tasks in stages: one begins when all of those before it are done. Each thread goes through all stages.
///
/// Tasks are numbered through the stages and taken in this order, so a thread only waits for tasks that others are doing.
struct Turns<'a> {
    next: &'a AtomicUsize,
    done: &'a AtomicUsize,
    task: usize,
    busy: bool,
    /// The first task of the stage.
    start: usize,
}

impl<'a> Turns<'a> {
    fn new(next: &'a AtomicUsize, done: &'a AtomicUsize) -> Turns<'a> {
        Turns { next, done, task: next.fetch_add(1, Ordering::Relaxed), busy: false, start: 0 }
    }

    /// The next task of a stage of so many; None if no task of it is left, which ends the stage for this thread.
    fn take(&mut self, tasks: usize) -> Option<usize> {
        if self.busy {
            self.done.fetch_add(1, Ordering::Release);
            self.task = self.next.fetch_add(1, Ordering::Relaxed);
            self.busy = false;
        }
        if self.task >= self.start + tasks {
            self.start += tasks;
            return None;
        }
        let mut looks = 0u32;
        while self.done.load(Ordering::Acquire) < self.start {
            looks += 1;
            if looks < 2000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        self.busy = true;
        Some(self.task - self.start)
    }
}
