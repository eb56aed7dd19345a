//! Merging the symbols of one piece: used by the trainer between its phases and by the encoder on a cache miss.
//!
//! One merge at a time, always the pair of the lowest rank, the leftmost on ties. The trainer replays merges in the
//! order in which it learned them, so it never applies a rank below the last one applied (`IN_ORDER`): if two different
//! pairs make the same token, the two definitions differ.
//!
//! Short pieces rescan a small array of ranks; above `SHORT` symbols a heap over a linked list keeps the cost at n log
//! n, so a million equal characters take a fraction of a second. The heap has a bounded number of pairs: a piece of
//! many megabytes takes several passes.

use crate::pairs::{FrozenPairs, NONE, PairMap, hash, key};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const SHORT: usize = 64;

/// Ranked merges: a pair's value is its rank, and `made[rank]` the symbol that it becomes.
pub struct Rules {
    ranks: FrozenPairs,
    made: Vec<u32>,
    /// A bit for the hash of every pair with a rank. Most pairs that are looked up have none, and the bits, unlike the
    /// map, fit into the CPU's cache.
    filter: Vec<u64>,
}

impl Rules {
    pub fn new(merges: impl ExactSizeIterator<Item = (u32, u32, u32)>) -> Self {
        let mut ranks = PairMap::with_capacity(merges.len());
        let mut all = Vec::with_capacity(merges.len());
        for (left, right, made) in merges {
            // A pair listed twice has its last rank, as in HF tokenizers.
            ranks.set(left, right, all.len() as u32);
            all.push(made);
        }
        Rules::freeze(ranks, all)
    }

    /// The rank of a pair is the id of the token that it makes.
    pub fn ranked_by_id(merges: &[(u32, u32, u32)]) -> Self {
        let mut ranks = PairMap::with_capacity(merges.len());
        for &(left, right, made) in merges {
            ranks.set(left, right, made);
        }
        let largest = merges.iter().map(|&(_, _, made)| made).max();
        Rules::freeze(ranks, largest.map_or(Vec::new(), |largest| (0..=largest).collect()))
    }

    fn freeze(ranks: PairMap, made: Vec<u32>) -> Self {
        let words = (ranks.len() * 16).next_power_of_two().max(64) / 64;
        let mut filter = vec![0; words];
        for pair in ranks.pairs() {
            let hash = hash(pair) as usize;
            filter[hash / 64 % words] |= 1 << (hash % 64);
        }
        Rules { ranks: FrozenPairs::new(ranks), made, filter }
    }

    pub fn is_empty(&self) -> bool {
        self.made.is_empty()
    }

    pub fn largest_made(&self) -> u32 {
        self.made.iter().copied().max().unwrap_or(0)
    }

    #[inline(always)]
    pub fn rank(&self, left: u32, right: u32) -> u32 {
        let pair = key(left, right);
        let hash = hash(pair);
        let word = self.filter[(hash as usize / 64) & (self.filter.len() - 1)];
        if word >> (hash % 64) & 1 == 0 { NONE } else { self.ranks.get(pair, hash) }
    }
}

/// Bytes per symbol of a long piece: the symbol itself, links both ways, and the pairs in the heap.
pub const LONG_PIECE_BYTES: usize = 14;

/// Buffers kept between calls.
#[derive(Default)]
pub struct Scratch {
    ranks: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
    heap: BinaryHeap<Reverse<RankedPlace>>,
}

impl Scratch {
    /// Frees the buffers after an unusually long piece.
    pub fn trim(&mut self) {
        if self.next.capacity() > 1 << 16 {
            *self = Scratch::default();
        }
    }
}

/// Merges `symbols` in place, where `rank(n)` is the rank of the nth pair: the symbols are bytes, and pairs of bytes
/// have a table. Pieces too long to profit from it are merged by `apply`.
#[inline]
pub fn apply_known(
    rules: &Rules,
    symbols: &mut Vec<u32>,
    scratch: &mut Scratch,
    rank: impl Fn(usize) -> u32,
) {
    if (2..=SHORT).contains(&symbols.len()) {
        scratch.ranks.clear();
        scratch.ranks.extend((0..symbols.len() - 1).map(rank));
        apply_short::<false>(rules, symbols, &mut scratch.ranks);
    } else {
        apply::<false>(rules, symbols, scratch);
    }
}

/// Merges `symbols` in place. Returns whether anything changed.
#[inline]
pub fn apply<const IN_ORDER: bool>(rules: &Rules, symbols: &mut Vec<u32>, scratch: &mut Scratch) -> bool {
    match symbols.len() {
        0 | 1 => false,
        n if n <= SHORT => {
            scratch.ranks.clear();
            scratch.ranks.extend(symbols.windows(2).map(|pair| rules.rank(pair[0], pair[1])));
            apply_short::<IN_ORDER>(rules, symbols, &mut scratch.ranks)
        }
        _ => apply_long::<IN_ORDER>(rules, symbols, scratch),
    }
}

fn apply_short<const IN_ORDER: bool>(rules: &Rules, symbols: &mut Vec<u32>, ranks: &mut Vec<u32>) -> bool {
    let mut changed = false;
    loop {
        let (mut best, mut at) = (NONE, 0);
        for (position, &rank) in ranks.iter().enumerate() {
            if rank < best {
                (best, at) = (rank, position);
            }
        }
        if best == NONE {
            return changed;
        }
        changed = true;
        let reachable = |rank: u32| if IN_ORDER && rank < best { NONE } else { rank };
        symbols[at] = rules.made[best as usize];
        symbols.remove(at + 1);
        ranks.remove(at);
        if at > 0 {
            ranks[at - 1] = reachable(rules.rank(symbols[at - 1], symbols[at]));
        }
        if at < ranks.len() {
            ranks[at] = reachable(rules.rank(symbols[at], symbols[at + 1]));
        }
    }
}

/// The pairs to merge next in a long piece: never more than twice `most` of them. Pairs that did not fit are found by
/// another pass over the piece, when all before them are merged.
struct Nearest<'a> {
    heap: &'a mut BinaryHeap<Reverse<RankedPlace>>,
    most: usize,
    /// The first pair that is not in the heap, if any did not fit.
    horizon: Option<RankedPlace>,
}

/// Rank and place: the lowest rank is merged first, the leftmost on ties.
type RankedPlace = (u32, u32);

impl Nearest<'_> {
    #[inline]
    fn push(&mut self, pair: RankedPlace) {
        if self.horizon.is_some_and(|horizon| pair >= horizon) {
            return;
        }
        self.heap.push(Reverse(pair));
        if self.heap.len() > 2 * self.most {
            let mut all = std::mem::take(self.heap).into_vec();
            // By what is inside `Reverse`, so that the smallest come first.
            let (_, last, _) = all.select_nth_unstable_by(self.most, |a, b| a.0.cmp(&b.0));
            self.horizon = Some(last.0);
            all.truncate(self.most);
            *self.heap = all.into();
        }
    }
}

/// Up to this many symbols, all pairs of a piece are in the heap at once.
const HEAP_PAIRS: usize = 1 << 16;

fn apply_long<const IN_ORDER: bool>(rules: &Rules, symbols: &mut Vec<u32>, scratch: &mut Scratch) -> bool {
    let n = symbols.len() as u32;
    let Scratch { next, previous, heap, .. } = scratch;
    next.clear();
    next.extend(1..=n);
    previous.clear();
    previous.extend((0..n).map(|at| at.wrapping_sub(1)));
    heap.clear();
    let mut changed = false;
    let mut from = Some((0, 0));
    while let Some(first) = from {
        let mut nearest = Nearest { heap, most: HEAP_PAIRS.max(n as usize / 32), horizon: None };
        let mut at = 0;
        while at < n && next[at as usize] < n {
            let after = next[at as usize];
            let rank = rules.rank(symbols[at as usize], symbols[after as usize]);
            if rank != NONE && (rank, at) >= first {
                nearest.push((rank, at));
            }
            at = after;
        }
        // A symbol that was merged into its left neighbor becomes NONE and matches nothing.
        while let Some(Reverse((rank, at))) = nearest.heap.pop() {
            let left = symbols[at as usize];
            let right_at = next[at as usize];
            if left == NONE || right_at == n || rules.rank(left, symbols[right_at as usize]) != rank {
                continue;
            }
            changed = true;
            symbols[at as usize] = rules.made[rank as usize];
            symbols[right_at as usize] = NONE;
            let after = next[right_at as usize];
            next[at as usize] = after;
            if after < n {
                previous[after as usize] = at;
            }
            let mut push = |left_at: u32, right_at: u32| {
                let found = rules.rank(symbols[left_at as usize], symbols[right_at as usize]);
                if found != NONE && !(IN_ORDER && found < rank) {
                    nearest.push((found, left_at));
                }
            };
            if previous[at as usize] != u32::MAX {
                push(previous[at as usize], at);
            }
            if after < n {
                push(at, after);
            }
        }
        from = nearest.horizon;
    }
    symbols.retain(|&symbol| symbol != NONE);
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: for every merge, in order, one pass over all symbols.
    fn replay(merges: &[(u32, u32, u32)], symbols: &mut Vec<u32>) {
        for &(left, right, made) in merges {
            let mut at = 0;
            while at + 1 < symbols.len() {
                if symbols[at] == left && symbols[at + 1] == right {
                    symbols[at] = made;
                    symbols.remove(at + 1);
                }
                at += 1;
            }
        }
    }

    /// Searches for the lowest rank, leftmost, from the start each time.
    fn greedy(merges: &[(u32, u32, u32)], symbols: &mut Vec<u32>) {
        let rank = |pair: &[u32]| merges.iter().position(|m| (m.0, m.1) == (pair[0], pair[1]));
        while let Some((rank, at)) =
            symbols.windows(2).enumerate().filter_map(|(at, pair)| Some((rank(pair)?, at))).min()
        {
            symbols[at] = merges[rank].2;
            symbols.remove(at + 1);
        }
    }

    /// Merges of real strings, so that two pairs sometimes make the same token.
    fn merges() -> impl Strategy<Value = Vec<(u32, u32, u32)>> {
        prop::collection::vec((any::<u32>(), any::<u32>()), 0..40).prop_map(|raw| {
            let mut strings: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
            let mut merges: Vec<(u32, u32, u32)> = Vec::new();
            for (left, right) in raw {
                // Mostly low symbols, so that the same strings occur again.
                let pick = |n: u32| {
                    if n.is_multiple_of(3) { n / 3 % strings.len() as u32 } else { n / 3 % 3 }
                };
                let (left, right) = (pick(left), pick(right));
                let made = strings[left as usize].clone() + &strings[right as usize];
                let id = strings.iter().position(|s| *s == made).unwrap_or_else(|| {
                    strings.push(made);
                    strings.len() - 1
                });
                if merges.iter().all(|m| (m.0, m.1) != (left, right)) {
                    merges.push((left, right, id as u32));
                }
            }
            merges
        })
    }

    proptest! {
        #[test]
        fn equals_the_definitions(merges in merges(), short in prop::collection::vec(0u32..3, 0..40), long in prop::collection::vec(0u32..3, 65..300)) {
            let rules = Rules::new(merges.iter().copied());
            let mut scratch = Scratch::default();
            for symbols in [short, long] {
                let (mut fast, mut slow) = (symbols.clone(), symbols.clone());
                apply::<false>(&rules, &mut fast, &mut scratch);
                greedy(&merges, &mut slow);
                prop_assert_eq!(&fast, &slow);
                let (mut fast, mut slow) = (symbols.clone(), symbols.clone());
                let changed = apply::<true>(&rules, &mut fast, &mut scratch);
                replay(&merges, &mut slow);
                prop_assert_eq!(&fast, &slow);
                prop_assert_eq!(changed, fast != symbols);
            }
        }
    }

    #[test]
    fn a_bounded_heap_gives_the_same_result() {
        // All pairs of two letters, then pairs of these: every pair of the piece has a rank, and each occurs often.
        let letters = 12u32;
        let mut merges: Vec<(u32, u32, u32)> = Vec::new();
        for left in 0..letters {
            for right in 0..letters {
                merges.push((left, right, letters + left * letters + right));
            }
        }
        merges.sort_by_key(|merge| hash(key(merge.0, merge.1)));
        let twos = merges.len() as u32;
        merges.extend((0..twos).map(|n| (letters + n, letters + (n * 7) % twos, letters + twos + n)));
        let rules = Rules::new(merges.into_iter());
        let mut state = 1u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32 % letters
        };
        let symbols: Vec<u32> = (0..6 * HEAP_PAIRS).map(|_| draw()).collect();
        let mut fast = symbols.clone();
        apply::<false>(&rules, &mut fast, &mut Scratch::default());
        let mut all = symbols;
        heap_of_all(&rules, &mut all);
        assert_eq!(fast, all);
    }

    /// Merging without a bound on the heap.
    fn heap_of_all(rules: &Rules, symbols: &mut Vec<u32>) {
        let n = symbols.len();
        let mut next: Vec<usize> = (1..=n).collect();
        let mut previous: Vec<Option<usize>> = (0..n).map(|at| at.checked_sub(1)).collect();
        let mut heap: BinaryHeap<Reverse<(u32, usize)>> =
            (0..n - 1).map(|at| Reverse((rules.rank(symbols[at], symbols[at + 1]), at))).collect();
        while let Some(Reverse((rank, at))) = heap.pop() {
            let right = next[at];
            if rank == NONE
                || symbols[at] == NONE
                || right == n
                || rules.rank(symbols[at], symbols[right]) != rank
            {
                continue;
            }
            (symbols[at], symbols[right]) = (rules.made[rank as usize], NONE);
            next[at] = next[right];
            if next[at] < n {
                previous[next[at]] = Some(at);
                heap.push(Reverse((rules.rank(symbols[at], symbols[next[at]]), at)));
            }
            if let Some(before) = previous[at] {
                heap.push(Reverse((rules.rank(symbols[before], symbols[at]), before)));
            }
        }
        symbols.retain(|&symbol| symbol != NONE);
    }

    #[test]
    fn a_million_equal_symbols_are_quick() {
        let merges: Vec<_> = (0..16).map(|n| (n, n, n + 1)).collect();
        let mut symbols = vec![0; 1_000_001];
        apply::<false>(&Rules::new(merges.into_iter()), &mut symbols, &mut Scratch::default());
        assert_eq!(symbols.iter().map(|&s| 1u64 << s).sum::<u64>(), 1_000_001);
        assert!(symbols.len() < 30);
    }
}
