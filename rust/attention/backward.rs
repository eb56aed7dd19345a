//! The backward pass: the shares of a softmax are computed again from the scores, a panel of queries by a block of keys
//! at a time.
//!
//! The gradients of keys and values are sums over heads and queries, those of queries sums over keys. If there are
//! enough heads for the threads, a thread has all queries of a key and value head, and keeps the sums for all keys.
//! Otherwise there are two passes in which the scores are computed twice: one for the queries, one for the keys. The
//! sums have the same order in both cases.

use super::block::{Block, PANEL, Start};
use super::mask::{KEYS, QUERIES, Seen};
use super::{Given, Sizes, View, ViewMut, Workplaces};
use crate::kernels::{Element, Kernel, LANES, Line, Vector, exp, load, run, store};
use std::ops::Range;

/// Panels of queries for which a block of keys and values is copied once.
const PANELS: usize = 2;

/// What a unit of work is.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Pass {
    /// All queries and keys of a key and value head.
    Both,
    /// Some panels of queries, for their gradients.
    Queries,
    /// A block of keys, for the gradients of keys and values.
    Keys,
}

/// Two passes compute seven products instead of five.
fn passes(sizes: Sizes, tokens: usize, threads: usize) -> &'static [Pass] {
    let (units, threads) = (tokens / sizes.seq_len * sizes.kv_heads, threads.max(1));
    let busy = units.div_ceil(threads) * threads;
    let several = sizes.units(PANELS) > 1 || sizes.heads > sizes.kv_heads;
    match several && 5 * busy > 7 * units {
        true => &[Pass::Queries, Pass::Keys],
        false => &[Pass::Both],
    }
}

/// Lines of scratch memory of a thread, for so many tokens or fewer.
pub fn scratch(sizes: Sizes, tokens: usize, threads: usize) -> usize {
    let passes =
        (1..=tokens / sizes.seq_len).flat_map(|sequences| passes(sizes, sequences * sizes.seq_len, threads));
    passes.map(|&pass| scratch_of(sizes, pass)).max().unwrap_or(0)
}

fn scratch_of(sizes: Sizes, pass: Pass) -> usize {
    let lines = sizes.lines();
    let blocks = match pass {
        Pass::Both => sizes.seq_len.div_ceil(KEYS),
        Pass::Queries => 0,
        Pass::Keys => 1,
    };
    2 * (blocks + 1) * KEYS * lines + PANELS * 5 * QUERIES * lines + 2 * PANEL * KEYS
}

pub fn backward<T: Element>(
    given: Given<'_, T>,
    [out, d_out]: [&[T]; 2],
    stats: &[f32],
    gradients: [ViewMut<'_, T>; 3],
    scratch: &mut [Line],
    threads: usize,
) {
    let Sizes { seq_len, heads, kv_heads, width } = given.sizes;
    let tokens = out.len() / (heads * width);
    let whole = |data| View { data, stride: heads * width, first: 0 };
    let (out, d_out) = (whole(out), whole(d_out));
    for &pass in passes(given.sizes, tokens, threads) {
        let units = match pass {
            Pass::Both => kv_heads,
            Pass::Queries => heads * given.sizes.units(PANELS),
            Pass::Keys => kv_heads * seq_len.div_ceil(KEYS),
        };
        let workplaces = Workplaces::new(scratch, scratch_of(given.sizes, pass), threads);
        let kernel = Backward { given, out, d_out, stats, gradients: &gradients, pass, workplaces };
        run(&kernel, tokens / seq_len * units, 1, threads);
    }
}

/// The rows of this kernel are units of work.
struct Backward<'a, T> {
    given: Given<'a, T>,
    out: View<'a, T>,
    d_out: View<'a, T>,
    stats: &'a [f32],
    gradients: &'a [ViewMut<'a, T>; 3],
    pass: Pass,
    workplaces: Workplaces<'a>,
}

/// A panel of queries at work.
struct Panel<'a> {
    seen: Seen,
    /// Queries, scaled, and the gradient of the result: (queries, width) and (width, queries).
    queries: Block<'a>,
    queries_across: Block<'a>,
    d_out: Block<'a>,
    d_out_across: Block<'a>,
    /// (queries, width)
    d_queries: Block<'a>,
    /// Of each softmax: the greatest score, the factor of exponentials, and the mean of the gradients of its shares.
    most: [Line; PANEL],
    part: [Line; PANEL],
    mean: [Line; PANEL],
}

/// A block of keys and values at work.
struct Keys<'a> {
    number: usize,
    keys: Block<'a>,
    values: Block<'a>,
}

/// A sequence at work, for one key and value head.
struct Unit<'a> {
    /// The first token.
    first: usize,
    kv_head: usize,
    heads: Range<usize>,
    /// In groups of `PANELS` panels.
    queries: Range<usize>,
    /// In blocks.
    keys: Range<usize>,
    documents: Option<&'a [i64]>,
}

impl<T: Element> Kernel for Backward<'_, T> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        let scratch = self.workplaces.take();
        for row in rows {
            self.process::<V>(self.unit(row), scratch);
        }
        self.workplaces.give_back(scratch);
    }
}

impl<T: Element> Backward<'_, T> {
    fn unit(&self, unit: usize) -> Unit<'_> {
        let Sizes { seq_len, heads, kv_heads, .. } = self.given.sizes;
        let (group, units, blocks) =
            (heads / kv_heads, self.given.sizes.units(PANELS), seq_len.div_ceil(KEYS));
        let (sequence, heads, queries, keys) = match self.pass {
            Pass::Both => {
                let head = unit % kv_heads * group;
                (unit / kv_heads, head..head + group, 0..units, 0..blocks)
            }
            Pass::Queries => {
                // Those that see the most keys come first.
                let (number, head) = (units - 1 - unit % units, unit / units % heads);
                (unit / units / heads, head..head + 1, number..number + 1, 0..blocks)
            }
            Pass::Keys => {
                let (number, head) = (unit % blocks, unit / blocks % kv_heads * group);
                let queries = number * KEYS / (PANELS * QUERIES)..units;
                (unit / blocks / kv_heads, head..head + group, queries, number..number + 1)
            }
        };
        let first = sequence * seq_len;
        let documents = self.given.documents.map(|documents| &documents[first..][..seq_len]);
        Unit { first, kv_head: heads.start / group, heads, queries, keys, documents }
    }

    #[inline(always)]
    fn process<V: Vector>(&self, unit: Unit<'_>, mut scratch: &mut [Line]) {
        let Sizes { seq_len, width, .. } = self.given.sizes;
        let (lines, column) = (self.given.sizes.lines(), unit.kv_head * width);
        let kept = if self.pass == Pass::Queries { 0 } else { unit.keys.len() };
        let (mut sums, rest) = scratch.split_at_mut(2 * kept * KEYS * lines);
        scratch = rest;
        sums.fill(Line([0.0; LANES]));
        let mut shares = Block::cut(&mut scratch, KEYS, PANEL);
        let mut d_scores = Block::cut(&mut scratch, KEYS, PANEL);
        let mut keys = Keys {
            number: usize::MAX,
            keys: Block::cut(&mut scratch, KEYS, lines),
            values: Block::cut(&mut scratch, KEYS, lines),
        };
        for head in unit.heads.clone() {
            for group in unit.queries.clone() {
                let mut scratch = &mut *scratch;
                let mut panels: [Option<Panel<'_>>; PANELS] = [const { None }; PANELS];
                for (number, panel) in panels.iter_mut().enumerate() {
                    let start = (group * PANELS + number) * QUERIES;
                    if start < seq_len {
                        *panel = Some(self.panel::<V>(&unit, head, start, &mut scratch));
                    }
                }
                let blocks = panels.iter().flatten().map(|panel| panel.seen.blocks());
                let blocks = blocks.reduce(|all, blocks| all.start..blocks.end).unwrap_or(0..0);
                for block in blocks.start.max(unit.keys.start)..blocks.end.min(unit.keys.end) {
                    if keys.number != block {
                        let tokens = unit.first + block * KEYS..unit.first + seq_len.min((block + 1) * KEYS);
                        keys.number = block;
                        keys.keys.read::<V, T>(self.given.k, tokens.clone(), column, width, 1.0);
                        keys.values.read::<V, T>(self.given.v, tokens, column, width, 1.0);
                    }
                    let mut sums = match kept {
                        0 => None,
                        _ => {
                            let mut own = &mut sums[2 * (block - unit.keys.start) * KEYS * lines..];
                            Some([Block::cut(&mut own, KEYS, lines), Block::cut(&mut own, KEYS, lines)])
                        }
                    };
                    for panel in panels.iter_mut().flatten() {
                        let given = (&keys, width, self.pass != Pass::Keys);
                        panel.add::<V>(given, [&mut shares, &mut d_scores], &mut sums);
                    }
                }
                if self.pass != Pass::Keys {
                    for panel in panels.iter().flatten() {
                        let tokens = unit.first + panel.seen.first()..;
                        let tokens = tokens.start..tokens.start + panel.seen.count;
                        let scale = self.given.sizes.scale();
                        self.write::<V>(0, tokens, head, &panel.d_queries, scale);
                    }
                }
            }
        }
        if kept > 0 {
            for block in unit.keys {
                let tokens = unit.first + block * KEYS..unit.first + seq_len.min((block + 1) * KEYS);
                for gradient in [1, 2] {
                    let sums = Block::cut(&mut sums, KEYS, lines);
                    self.write::<V>(gradient, tokens.clone(), unit.kv_head, &sums, 1.0);
                }
            }
        }
    }

    #[inline(always)]
    fn panel<'a, V: Vector>(
        &self,
        unit: &Unit<'_>,
        head: usize,
        start: usize,
        scratch: &mut &'a mut [Line],
    ) -> Panel<'a> {
        let Sizes { seq_len, heads, width, .. } = self.given.sizes;
        let lines = self.given.sizes.lines();
        let seen = Seen::new(start, seq_len, unit.documents);
        let tokens = unit.first + start..unit.first + start + seen.count;
        let mut queries = Block::cut(scratch, QUERIES, lines);
        let mut queries_across = Block::cut(scratch, lines * LANES, PANEL);
        let mut d_out = Block::cut(scratch, QUERIES, lines);
        let mut d_out_across = Block::cut(scratch, lines * LANES, PANEL);
        let mut d_queries = Block::cut(scratch, QUERIES, lines);
        let scale = self.given.sizes.scale();
        queries.read::<V, T>(self.given.q, tokens.clone(), head * width, width, scale);
        queries_across.transpose::<V>(&queries);
        d_out.read::<V, T>(self.d_out, tokens.clone(), head * width, width, 1.0);
        d_out_across.transpose::<V>(&d_out);
        d_queries.fill(0.0);
        let [mut most, mut part, mut mean] = [[Line([0.0; LANES]); PANEL]; 3];
        for (query, token) in tokens.enumerate() {
            let (line, lane) = (query / LANES, query % LANES);
            let row = token * heads + head;
            [most[line].0[lane], part[line].0[lane]] = [self.stats[2 * row], self.stats[2 * row + 1]];
            let out = &self.out.data[row * width..][..width];
            let mut sum = V::splat(0.0);
            for line in 0..lines {
                let d_out = V::load_f32(d_out.line(query, line));
                sum = load::<V, T>(out, line * LANES).mul_add(d_out, sum);
            }
            mean[line].0[lane] = sum.sum();
        }
        Panel { seen, queries, queries_across, d_out, d_out_across, d_queries, most, part, mean }
    }

    #[inline(always)]
    fn write<V: Vector>(
        &self,
        gradient: usize,
        tokens: Range<usize>,
        head: usize,
        from: &Block<'_>,
        scale: f32,
    ) {
        let width = self.given.sizes.width;
        for (row, token) in tokens.enumerate() {
            // SAFETY: no other unit writes this head of this token, and views do not overlap, as `backward` asserts.
            let to = unsafe { self.gradients[gradient].row(token, head * width, width) };
            for line in 0..self.given.sizes.lines() {
                store(V::load_f32(from.line(row, line)) * V::splat(scale), to, line * LANES);
            }
        }
    }
}

impl Panel<'_> {
    /// Adds what this panel and a block of keys give each other; to `sums` of keys and values if there are any.
    #[inline(always)]
    fn add<V: Vector>(
        &mut self,
        (keys, width, for_queries): (&Keys<'_>, usize, bool),
        [shares, d_scores]: [&mut Block<'_>; 2],
        sums: &mut Option<[Block<'_>; 2]>,
    ) {
        let (count, queries) = (self.seen.keys(keys.number), self.seen.count);
        if count == 0 {
            return;
        }
        shares.product::<V>(&keys.keys, &self.queries_across, count, width, Start::Zero);
        self.shares::<V>(shares, keys.number * KEYS, count);
        d_scores.product::<V>(&keys.values, &self.d_out_across, count, width, Start::Zero);
        if let Some([_, d_values]) = sums {
            d_values.product::<V>(shares, &self.d_out, count, queries, Start::Kept);
        }
        self.d_scores::<V>(shares, d_scores, count);
        if let Some([d_keys, _]) = sums {
            d_keys.product::<V>(d_scores, &self.queries, count, queries, Start::Kept);
        }
        if for_queries {
            self.d_queries.transposed_product::<V>(d_scores, &keys.keys, queries, count, Start::Kept);
        }
    }

    /// Replaces scores by shares.
    #[inline(always)]
    fn shares<V: Vector>(&self, scores: &mut Block<'_>, first: usize, count: usize) {
        let most = [V::load_f32(&self.most[0].0), V::load_f32(&self.most[1].0)];
        let part = [V::load_f32(&self.part[0].0), V::load_f32(&self.part[1].0)];
        for (key, row) in scores.rows_mut()[..count].iter_mut().enumerate() {
            let mut scores = [V::load_f32(&row[0].0), V::load_f32(&row[1].0)];
            if !self.seen.all_see(first + key) {
                scores =
                    [self.seen.hide(first + key, 0, scores[0]), self.seen.hide(first + key, 1, scores[1])];
            }
            (exp(scores[0] - most[0]) * part[0]).store_f32(&mut row[0].0);
            (exp(scores[1] - most[1]) * part[1]).store_f32(&mut row[1].0);
        }
    }

    /// Replaces the gradients of shares by those of scores.
    #[inline(always)]
    fn d_scores<V: Vector>(&self, shares: &mut Block<'_>, d_shares: &mut Block<'_>, count: usize) {
        let mean = [V::load_f32(&self.mean[0].0), V::load_f32(&self.mean[1].0)];
        let rows = d_shares.rows_mut()[..count].iter_mut().zip(&shares.rows_mut()[..count]);
        for (row, shares) in rows {
            for line in 0..PANEL {
                let excess = V::load_f32(&row[line].0) - mean[line];
                (V::load_f32(&shares[line].0) * excess).store_f32(&mut row[line].0);
            }
        }
    }
}
