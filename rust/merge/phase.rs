//! One phase of merging: the segments in memory, and merges among them down to the threshold.
//!
//! All segments stand in one row of slots with a separator between two. A token that covers n
//! slots has its id in the first and in the last of them, so both neighbours of a place are found
//! without links. Only pairs that reach the threshold are indexed: there are few, whatever the
//! corpus, and their index stays in the cache. Posting lists are built once, for a pair that reaches the
//! threshold at the merge that makes it, and never grow, because all of a new pair's occurrences
//! arise in that one merge. What the neighbours of a merge lose and what the new pairs gain is the
//! same number, so it is added up once for each distinct neighbour.

use super::segments::Segments;
use super::vocabulary::{TieBreak, Vocabulary};
use crate::crew::{Progress, Watch};
use crate::error::Result;
use crate::pairs::{NONE, PairMap};
use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;

/// Separates segments. Covered slots inside a token hold `COVERED`. No id reaches either.
const SEPARATOR: u32 = u32::MAX;
const COVERED: u32 = u32::MAX - 1;
const WATCH_EVERY: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// Every pair left is rarer than the threshold.
    Threshold,
    /// A merge made a token that was there already, so pairs with it may have grown unseen.
    Duplicate,
    /// What the pairs take has outgrown the phase's memory.
    Outgrown,
    /// The vocabulary has the size asked for.
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

/// What a pair takes at the most while they are counted: its place in a map of all of them as that grows, its sum, and
/// once more in the index where it reaches the threshold.
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
    /// Slots that a token covers; every token from before the phase covers one.
    widths: Vec<u32>,
    pairs: Vec<Pair>,
    index: PairMap,
    postings: Vec<u32>,
    heap: Vec<(u64, u32)>,
    hits: Vec<u32>,
    left: Neighbours,
    right: Neighbours,
}

/// Sums by neighbouring token, and which of them were touched.
#[derive(Default)]
struct Neighbours {
    sums: Vec<Sum>,
    touched: Vec<u32>,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    occurrences: u32,
    /// Where the next occurrence goes in the postings, for a pair that reached the threshold.
    place: u32,
}

impl Neighbours {
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
        let neighbours = || Neighbours { sums: vec![Sum::default(); limits.tokens], touched: Vec::new() };
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
            left: neighbours(),
            right: neighbours(),
        };
        phase.index_pairs();
        phase
    }

    /// Counts every pair, keeps those that reach the threshold and lists their places in order.
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
                // The first occurrence makes the pair; the sum's occurrences are used up as its mark.
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

    /// Replaces every occurrence of the pair. False when the token was there already: then nothing
    /// here is changed and the phase is over.
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
        let pairs_of_itself = self.sum_neighbours(made, width);
        self.take_from_old_pairs(pair, x, y, pairs_of_itself.count);
        self.make_new_pairs(made, width, pairs_of_itself);
        self.pairs[pair as usize].count = 0;
        true
    }

    /// Left to right; `hits` receives where the new token now starts.
    fn replace(&mut self, x: u32, y: u32, made: u32, start: usize, length: u32) {
        let (width_x, width_y) = (self.widths[x as usize] as usize, self.widths[y as usize] as usize);
        self.hits.clear();
        for &place in &self.postings[start..start + length as usize] {
            let at = place as usize;
            if self.slots[at] != x || self.slots[at + width_x] != y {
                continue; // an earlier merge took one of the two
            }
            self.slots[at + width_x - 1] = COVERED;
            self.slots[at + width_x] = COVERED;
            self.slots[at] = made;
            self.slots[at + width_x + width_y - 1] = made;
            self.hits.push(place);
        }
    }

    /// Adds up what stands left and right of the new tokens; returns the sum for two of them in a row.
    fn sum_neighbours(&mut self, made: u32, width: u32) -> Sum {
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

    /// Where the new token stands beside a neighbour, one of its halves stood before.
    fn take_from_old_pairs(&mut self, merged: u32, x: u32, y: u32, between: u64) {
        let Phase { pairs, index, left, right, .. } = self;
        let mut take = |a: u32, b: u32, count: u64| {
            let n = index.get(a, b);
            if n != NONE && n != merged {
                pairs[n as usize].count -= count;
            }
        };
        for &token in &left.touched {
            take(token, x, left.sums[token as usize].count);
        }
        for &token in &right.touched {
            take(y, token, right.sums[token as usize].count);
        }
        if between > 0 {
            take(y, x, between);
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
        for neighbours in [&mut self.left, &mut self.right] {
            for token in neighbours.touched.drain(..) {
                neighbours.sums[token as usize] = Sum::default();
            }
        }
    }

    fn before(&self, a: (u64, u32), b: (u64, u32)) -> bool {
        let pair = |n: u32| (self.pairs[n as usize].left, self.pairs[n as usize].right);
        a.0.cmp(&b.0).then_with(|| self.vocabulary.order(self.limits.tie_break, pair(a.1), pair(b.1)))
            == Ordering::Greater
    }

    /// A binary heap by hand: the order of equals needs the vocabulary.
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

    /// The most frequent pair, `None` when it is below the threshold. Counts only fall, so an entry
    /// that claims too much is put back with what is left.
    fn pop(&mut self) -> Option<u32> {
        while let Some(&(claimed, pair)) = self.heap.first() {
            let count = self.pairs[pair as usize].count;
            if count == claimed {
                let last = self.heap.pop()?;
                if !self.heap.is_empty() {
                    self.sift_down(last);
                }
                return Some(pair);
            }
            if count >= self.threshold {
                self.sift_down((count, pair));
            } else {
                let last = self.heap.pop()?;
                if !self.heap.is_empty() {
                    self.sift_down(last);
                }
            }
        }
        None
    }
}
