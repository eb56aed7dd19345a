//! One phase of merging: all segments in memory, and merges among them down to the threshold.
//!
//! All segments are in one array of slots, with a separator between two. A token that covers n slots has its id in the
//! first and the last of them, so both neighbors of a token are found without links. Only pairs that reach the
//! threshold are indexed: there are few, whatever the corpus, and their index stays in the CPU's cache. The posting
//! list of a pair is built once, at the merge that makes it, and never grows, because all occurrences of a new pair
//! come from that one merge. What the old pairs lose in a merge and what the new pairs gain is the same number, so it
//! is summed once per distinct neighbor.

use super::segments::Segments;
use super::vocabulary::{TieBreak, Vocabulary};
use crate::crew::{Progress, Watch};
use crate::error::Result;
use crate::pairs::{NONE, PairMap};
use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;

/// Separates segments. Slots inside a token are `COVERED`. No id reaches either value.
const SEPARATOR: u32 = u32::MAX;
const COVERED: u32 = u32::MAX - 1;
const WATCH_EVERY: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// Every remaining pair is rarer than the threshold.
    Threshold,
    /// A merge made a token that existed already, so the counts of its pairs may be too low.
    Duplicate,
    /// The pairs have outgrown the phase's memory.
    Outgrown,
    /// The vocabulary has the requested size.
    Full,
}

#[derive(Clone, Copy)]
pub struct Limits {
    pub tokens: usize,
    pub max_token_bytes: usize,
    pub tie_break: TieBreak,
    /// Bytes for slots, pairs and their postings.
    pub memory: usize,
}

/// The most memory per pair while they are counted: its slot in the map of all pairs, which grows by doubling, its sum,
/// and its entry in the index if it reaches the threshold.
pub const PAIR_BYTES: usize = 192;

struct Pair {
    left: u32,
    right: u32,
    count: u64,
    start: usize,
    length: u32,
}

struct Phase<'a> {
    threshold: u64,
    limits: &'a Limits,
    vocabulary: &'a mut Vocabulary,
    slots: Vec<u32>,
    segment_of: Vec<u32>,
    weights: Vec<u64>,
    /// How many slots a token covers; every token from before the phase covers one.
    widths: Vec<u32>,
    pairs: Vec<Pair>,
    index: PairMap,
    postings: Vec<u32>,
    heap: Vec<(u64, u32)>,
    hits: Vec<u32>,
    left: Neighbors,
    right: Neighbors,
}

/// Sums by neighboring token, and which of them are not zero.
#[derive(Default)]
struct Neighbors {
    sums: Vec<Sum>,
    touched: Vec<u32>,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    occurrences: u32,
    /// Where the next occurrence goes in the postings, if the pair reached the threshold.
    place: u32,
}

impl Neighbors {
    #[inline(always)]
    fn add(&mut self, token: u32, count: u64) {
        let sum = &mut self.sums[token as usize];
        if sum.occurrences == 0 {
            self.touched.push(token);
        }
        sum.count += count;
        sum.occurrences += 1;
    }
}

pub fn run(
    segments: Segments,
    threshold: u64,
    limits: &Limits,
    vocabulary: &mut Vocabulary,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<End> {
    let mut phase = Phase::new(segments, threshold, limits, vocabulary);
    let mut merged = 0;
    while phase.vocabulary.len() < phase.limits.tokens {
        let Some(pair) = phase.pop() else {
            return Ok(End::Threshold);
        };
        if !phase.merge(pair) {
            return Ok(End::Duplicate);
        }
        if phase.bytes() > limits.memory {
            return Ok(End::Outgrown);
        }
        progress.done.store(phase.vocabulary.len() as u64, Relaxed);
        merged += 1;
        if merged % WATCH_EVERY == 0 {
            watch(progress)?;
        }
    }
    Ok(End::Full)
}

impl<'a> Phase<'a> {
    fn new(segments: Segments, threshold: u64, limits: &'a Limits, vocabulary: &'a mut Vocabulary) -> Self {
        let mut slots = Vec::with_capacity(segments.slots() + 1);
        let mut segment_of = Vec::with_capacity(segments.slots() + 1);
        let mut weights = Vec::with_capacity(segments.count());
        slots.push(SEPARATOR);
        segment_of.push(0);
        segments.drain(|symbols, count| {
            let segment = weights.len() as u32;
            weights.push(count);
            slots.extend(symbols);
            slots.push(SEPARATOR);
            segment_of.resize(slots.len(), segment);
        });
        let neighbors = || Neighbors { sums: vec![Sum::default(); limits.tokens], touched: Vec::new() };
        let mut phase = Phase {
            widths: vec![1; vocabulary.len()],
            threshold,
            limits,
            vocabulary,
            slots,
            segment_of,
            weights,
            pairs: Vec::new(),
            index: PairMap::with_capacity(1 << 12),
            postings: Vec::new(),
            heap: Vec::new(),
            hits: Vec::new(),
            left: neighbors(),
            right: neighbors(),
        };
        phase.index_pairs();
        phase
    }

    /// Counts every pair, keeps those that reach the threshold, and lists their places in order.
    fn index_pairs(&mut self) {
        let mut all = PairMap::with_capacity(1 << 12);
        let mut sums: Vec<(u64, u32)> = Vec::new();
        for (at, pair) in self.slots.windows(2).enumerate() {
            if pair[0] != SEPARATOR && pair[1] != SEPARATOR {
                let n = all.get_or_insert(pair[0], pair[1], sums.len() as u32) as usize;
                if n == sums.len() {
                    sums.push((0, 0));
                }
                sums[n].0 += self.weights[self.segment_of[at] as usize];
                sums[n].1 += 1;
            }
        }
        let mut places = vec![NONE; sums.len()];
        let mut total = 0;
        let slots = std::mem::take(&mut self.slots);
        for (at, pair) in slots.windows(2).enumerate() {
            if pair[0] == SEPARATOR || pair[1] == SEPARATOR {
                continue;
            }
            let n = all.get(pair[0], pair[1]) as usize;
            let (count, occurrences) = sums[n];
            if occurrences > 0 && self.reaches(pair[0], pair[1], count) {
                // The first occurrence adds the pair; setting its occurrences to 0 marks it as added.
                places[n] = self.add_pair(pair[0], pair[1], count, total, occurrences) as u32;
                total += occurrences as usize;
                sums[n].1 = 0;
                self.postings.resize(total, 0);
                self.pairs[places[n] as usize].length = 0;
            }
            if places[n] != NONE {
                let pair = &mut self.pairs[places[n] as usize];
                self.postings[pair.start + pair.length as usize] = at as u32;
                pair.length += 1;
            }
        }
        self.slots = slots;
    }

    fn bytes(&self) -> usize {
        let of_pairs = size_of::<Pair>() + size_of::<(u64, u32)>();
        (self.slots.len() + self.segment_of.len() + self.postings.len()) * size_of::<u32>()
            + self.weights.len() * size_of::<u64>()
            + self.pairs.len() * of_pairs
            + self.index.bytes()
    }

    fn reaches(&self, left: u32, right: u32, count: u64) -> bool {
        count >= self.threshold && self.vocabulary.merged_length(left, right) <= self.limits.max_token_bytes
    }

    fn add_pair(&mut self, left: u32, right: u32, count: u64, start: usize, length: u32) -> usize {
        let n = self.pairs.len();
        self.pairs.push(Pair { left, right, count, start, length });
        self.index.get_or_insert(left, right, n as u32);
        self.push(count, n as u32);
        n
    }

    /// Replaces every occurrence of the pair. False if the token existed already: then nothing here is changed, and the
    /// phase is over.
    fn merge(&mut self, pair: u32) -> bool {
        let Pair { left: x, right: y, start, length, .. } = self.pairs[pair as usize];
        let (made, new) = self.vocabulary.merge(x, y);
        if !new {
            return false;
        }
        let (width_x, width_y) = (self.widths[x as usize], self.widths[y as usize]);
        let width = width_x + width_y;
        self.widths.push(width);
        self.replace(x, y, made, start, length);
        let pairs_of_itself = self.sum_neighbors(made, width);
        self.subtract_from_old_pairs(pair, x, y, pairs_of_itself.count);
        self.make_new_pairs(made, width, pairs_of_itself);
        self.pairs[pair as usize].count = 0;
        true
    }

    /// From left to right; `hits` receives the places where the new token starts.
    fn replace(&mut self, x: u32, y: u32, made: u32, start: usize, length: u32) {
        let (width_x, width_y) = (self.widths[x as usize] as usize, self.widths[y as usize] as usize);
        self.hits.clear();
        for &place in &self.postings[start..start + length as usize] {
            let at = place as usize;
            if self.slots[at] != x || self.slots[at + width_x] != y {
                continue; // an earlier merge used one of the two
            }
            self.slots[at + width_x - 1] = COVERED;
            self.slots[at + width_x] = COVERED;
            self.slots[at] = made;
            self.slots[at + width_x + width_y - 1] = made;
            self.hits.push(place);
        }
    }

    /// Sums the counts of the left and right neighbors of the new tokens; returns the sum for two of them in a row.
    fn sum_neighbors(&mut self, made: u32, width: u32) -> Sum {
        let mut itself = Sum::default();
        for &place in &self.hits {
            let weight = self.weights[self.segment_of[place as usize] as usize];
            let left = self.slots[place as usize - 1];
            let right = self.slots[(place + width) as usize];
            if left == made {
                itself.count += weight;
                itself.occurrences += 1;
            } else if left != SEPARATOR {
                self.left.add(left, weight);
            }
            if right != SEPARATOR && right != made {
                self.right.add(right, weight);
            }
        }
        itself
    }

    /// Each neighbor of the new token was next to one of its halves before: subtracts the counts of those pairs.
    fn subtract_from_old_pairs(&mut self, merged: u32, x: u32, y: u32, between: u64) {
        let Phase { pairs, index, left, right, .. } = self;
        let mut subtract = |a: u32, b: u32, count: u64| {
            let n = index.get(a, b);
            if n != NONE && n != merged {
                pairs[n as usize].count -= count;
            }
        };
        for &token in &left.touched {
            subtract(token, x, left.sums[token as usize].count);
        }
        for &token in &right.touched {
            subtract(y, token, right.sums[token as usize].count);
        }
        if between > 0 {
            subtract(y, x, between);
        }
    }

    fn make_new_pairs(&mut self, made: u32, width: u32, itself: Sum) {
        let mut end = self.postings.len();
        let mut any = false;
        let mut admit = |phase: &mut Self, a: u32, b: u32, sum: Sum| -> u32 {
            if sum.occurrences == 0 || !phase.reaches(a, b, sum.count) {
                return NONE;
            }
            any = true;
            let start = end;
            end += sum.occurrences as usize;
            phase.add_pair(a, b, sum.count, start, sum.occurrences);
            start as u32
        };
        let mut itself_place = admit(self, made, made, itself);
        for n in 0..self.left.touched.len() {
            let token = self.left.touched[n];
            let place = admit(self, token, made, self.left.sums[token as usize]);
            self.left.sums[token as usize].place = place;
        }
        for n in 0..self.right.touched.len() {
            let token = self.right.touched[n];
            let place = admit(self, made, token, self.right.sums[token as usize]);
            self.right.sums[token as usize].place = place;
        }
        if any {
            self.postings.resize(end, 0);
            for &place in &self.hits {
                let left = self.slots[place as usize - 1];
                let right = self.slots[(place + width) as usize];
                if left == made {
                    if itself_place != NONE {
                        self.postings[itself_place as usize] = place - width;
                        itself_place += 1;
                    }
                } else if left != SEPARATOR {
                    let sum = &mut self.left.sums[left as usize];
                    if sum.place != NONE {
                        self.postings[sum.place as usize] = place - self.widths[left as usize];
                        sum.place += 1;
                    }
                }
                if right != SEPARATOR && right != made {
                    let sum = &mut self.right.sums[right as usize];
                    if sum.place != NONE {
                        self.postings[sum.place as usize] = place;
                        sum.place += 1;
                    }
                }
            }
        }
        for neighbors in [&mut self.left, &mut self.right] {
            for token in neighbors.touched.drain(..) {
                neighbors.sums[token as usize] = Sum::default();
            }
        }
    }

    fn before(&self, a: (u64, u32), b: (u64, u32)) -> bool {
        let pair = |n: u32| (self.pairs[n as usize].left, self.pairs[n as usize].right);
        a.0.cmp(&b.0).then_with(|| self.vocabulary.order(self.limits.tie_break, pair(a.1), pair(b.1)))
            == Ordering::Greater
    }

    /// A hand-written binary heap: breaking ties needs the vocabulary.
    fn push(&mut self, count: u64, pair: u32) {
        let entry = (count, pair);
        let mut at = self.heap.len();
        self.heap.push(entry);
        while at > 0 && self.before(entry, self.heap[(at - 1) / 2]) {
            self.heap[at] = self.heap[(at - 1) / 2];
            at = (at - 1) / 2;
        }
        self.heap[at] = entry;
    }

    fn sift_down(&mut self, entry: (u64, u32)) {
        let mut at = 0;
        loop {
            let mut child = 2 * at + 1;
            if child >= self.heap.len() {
                break;
            }
            if child + 1 < self.heap.len() && self.before(self.heap[child + 1], self.heap[child]) {
                child += 1;
            }
            if !self.before(self.heap[child], entry) {
                break;
            }
            self.heap[at] = self.heap[child];
            at = child;
        }
        self.heap[at] = entry;
    }

    /// The most frequent pair, `None` if it is below the threshold. Counts only fall, so an entry with an outdated
    /// count is put back with the current one.
    fn pop(&mut self) -> Option<u32> {
        while let Some(&(claimed, pair)) = self.heap.first() {
            let count = self.pairs[pair as usize].count;
            if count != claimed && count >= self.threshold {
                self.sift_down((count, pair));
                continue;
            }
            let last = self.heap.pop()?;
            if !self.heap.is_empty() {
                self.sift_down(last);
            }
            if count == claimed {
                return Some(pair);
            }
        }
        None
    }
}
