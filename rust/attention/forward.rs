//! The forward pass: block by block of keys, with the greatest score and the sum of exponentials so far.

use super::block::{Block, PANEL, Start};
use super::mask::{KEYS, QUERIES, Seen};
use super::{Given, Sizes, Workplaces};
use crate::kernels::{Element, Kernel, LANES, Line, Rows, Vector, exp, run, store};
use std::ops::Range;

/// The most panels of queries for which a block of keys and values is copied once.
const PANELS: usize = 4;

/// Lines of scratch memory of a thread.
pub fn scratch(sizes: Sizes) -> usize {
    let lines = sizes.lines();
    2 * KEYS * lines + PANELS * (2 * QUERIES * lines + PANEL * KEYS)
}

pub fn forward<T: Element>(
    given: Given<'_, T>,
    out: &mut [T],
    stats: &mut [f32],
    scratch: &mut [Line],
    threads: usize,
) {
    let Sizes { seq_len, heads, width, .. } = given.sizes;
    let tokens = out.len() / (heads * width);
    let panels = given.sizes.panels(PANELS, tokens, threads);
    let units = tokens / seq_len * heads * given.sizes.units(panels);
    let workplaces = Workplaces::new(scratch, self::scratch(given.sizes), threads);
    let (out, stats) = (Rows::new(out, width), Rows::new(stats, 2));
    run(&Forward { given, panels, out, stats, workplaces }, units, 1, threads);
}

/// The rows of this kernel are units of queries, of one head in one sequence.
struct Forward<'a, T> {
    given: Given<'a, T>,
    /// In a unit, at most.
    panels: usize,
    out: Rows<'a, T>,
    stats: Rows<'a, f32>,
    workplaces: Workplaces<'a>,
}

/// A panel of queries at work.
struct Panel<'a> {
    seen: Seen,
    /// (width, queries), scaled.
    queries: Block<'a>,
    /// (keys, queries)
    scores: Block<'a>,
    /// (queries, width)
    sums: Block<'a>,
    most: [Line; PANEL],
    total: [Line; PANEL],
}

impl<T: Element> Kernel for Forward<'_, T> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        let scratch = self.workplaces.take();
        for row in rows {
            self.unit::<V>(row, scratch);
        }
        self.workplaces.give_back(scratch);
    }
}

impl<T: Element> Forward<'_, T> {
    #[inline(always)]
    fn unit<V: Vector>(&self, unit: usize, mut scratch: &mut [Line]) {
        let Sizes { seq_len, heads, kv_heads, width } = self.given.sizes;
        let (lines, units) = (self.given.sizes.lines(), self.given.sizes.units(self.panels));
        let (sequence, head) = (unit / units / heads, unit / units % heads);
        // The last queries, which see the most keys, come first: the threads are done at about the same time.
        let start = (units - 1 - unit % units) * self.panels * QUERIES;
        let first = sequence * seq_len;
        let column = head / (heads / kv_heads) * width;
        let mut keys = Block::cut(&mut scratch, KEYS, lines);
        let mut values = Block::cut(&mut scratch, KEYS, lines);
        let documents = self.given.documents.map(|documents| &documents[first..][..seq_len]);
        let mut panels: [Option<Panel<'_>>; PANELS] = [const { None }; PANELS];
        for (number, panel) in panels[..self.panels].iter_mut().enumerate() {
            let start = start + number * QUERIES;
            if start >= seq_len {
                break;
            }
            let seen = Seen::new(start, seq_len, documents);
            let mut queries = Block::cut(&mut scratch, lines * LANES, PANEL);
            let scores = Block::cut(&mut scratch, KEYS, PANEL);
            let mut sums = Block::cut(&mut scratch, QUERIES, lines);
            let tokens = first + start..first + start + seen.count;
            sums.read::<V, T>(self.given.q, tokens, head * width, width, self.given.sizes.scale());
            queries.transpose::<V>(&sums);
            sums.fill(0.0);
            let (most, total) = ([Line([f32::MIN; LANES]); PANEL], [Line([0.0; LANES]); PANEL]);
            *panel = Some(Panel { seen, queries, scores, sums, most, total });
        }
        let blocks = panels.iter().flatten().map(|panel| panel.seen.blocks());
        let blocks = blocks.reduce(|all, blocks| all.start..blocks.end).unwrap_or(0..0);
        for block in blocks {
            let tokens = first + block * KEYS..first + seq_len.min((block + 1) * KEYS);
            keys.read::<V, T>(self.given.k, tokens.clone(), column, width, 1.0);
            values.read::<V, T>(self.given.v, tokens, column, width, 1.0);
            for panel in panels.iter_mut().flatten() {
                panel.add::<V>(block, &keys, &values, width);
            }
        }
        for panel in panels.iter().flatten() {
            for query in 0..panel.seen.count {
                let row = (first + panel.seen.first() + query) * heads + head;
                let (line, lane) = (query / LANES, query % LANES);
                let part = 1.0 / panel.total[line].0[lane];
                // SAFETY: no other unit has this head of this token.
                let (out, stats) = unsafe { (self.out.row(row), self.stats.row(row)) };
                stats.copy_from_slice(&[panel.most[line].0[lane], part]);
                for line in 0..lines {
                    let mean = V::load_f32(panel.sums.line(query, line)) * V::splat(part);
                    store(mean, out, line * LANES);
                }
            }
        }
    }
}

impl Panel<'_> {
    /// Adds the values of a block.
    #[inline(always)]
    fn add<V: Vector>(&mut self, block: usize, keys: &Block<'_>, values: &Block<'_>, width: usize) {
        let count = self.seen.keys(block);
        if count == 0 {
            return;
        }
        self.scores.product::<V>(keys, &self.queries, count, width, Start::Zero);
        let factors = self.exponentials::<V>(block, count);
        let factors = Start::Scaled(factors.as_flattened());
        self.sums.transposed_product::<V>(&self.scores, values, self.seen.count, count, factors);
    }

    /// Replaces scores by their exponentials, and adds these to the total. Returns what to multiply earlier ones by.
    #[inline(always)]
    fn exponentials<V: Vector>(&mut self, block: usize, count: usize) -> [[f32; LANES]; PANEL] {
        let rows = &mut self.scores.rows_mut()[..count];
        let mut factors = [[0.0; LANES]; PANEL];
        let before = [V::load_f32(&self.most[0].0), V::load_f32(&self.most[1].0)];
        let mut most = before;
        for (key, row) in rows.iter_mut().enumerate() {
            let key = block * KEYS + key;
            if self.seen.all_see(key) {
                most[0] = V::load_f32(&row[0].0).greater(most[0]);
                most[1] = V::load_f32(&row[1].0).greater(most[1]);
            } else {
                for line in 0..PANEL {
                    let scores = self.seen.hide(key, line, V::load_f32(&row[line].0));
                    scores.store_f32(&mut row[line].0);
                    most[line] = scores.greater(most[line]);
                }
            }
        }
        let mut total = [V::splat(0.0); PANEL];
        for line in 0..PANEL {
            let factor = exp(before[line] - most[line]);
            factor.store_f32(&mut factors[line]);
            most[line].store_f32(&mut self.most[line].0);
            total[line] = V::load_f32(&self.total[line].0) * factor;
        }
        for row in rows {
            let powers = [exp(V::load_f32(&row[0].0) - most[0]), exp(V::load_f32(&row[1].0) - most[1])];
            powers[0].store_f32(&mut row[0].0);
            powers[1].store_f32(&mut row[1].0);
            total = [total[0] + powers[0], total[1] + powers[1]];
        }
        total[0].store_f32(&mut self.total[0].0);
        total[1].store_f32(&mut self.total[1].0);
        factors
    }
}
