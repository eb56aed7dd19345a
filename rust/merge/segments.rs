//! The parts of the pieces that can still change in this phase: runs of symbols joined by pairs that may reach the
//! threshold.
//!
//! A pair below the threshold is not merged in this phase, and no pair that a merge makes across it can be more
//! frequent than it is. So the piece can be cut there into segments that do not affect each other, and equal segments
//! of different pieces are stored once, with their counts added.

use crate::pairs::PairMap;
use crate::table::{CountTable, hash};
use crate::varint;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const STRIPES: usize = 64;
/// Initial capacity of a stripe, in keys.
const FIRST: usize = 64;
/// Stripes that make a fair sample of all.
const SAMPLE: usize = 4;

/// The most bytes per segment and per symbol slot, first in these tables (a slot of 24 bytes at a load of 3/8, just
/// after growing), then in the phase (symbol, segment number, three places in posting lists).
const TABLE_BYTES: usize = 64;
const WEIGHT_BYTES: usize = 8;
const SLOT_BYTES: usize = 20;

pub struct Segments {
    stripes: Vec<Mutex<CountTable>>,
    slots: AtomicUsize,
    segments: AtomicUsize,
}

impl Default for Segments {
    fn default() -> Self {
        Segments {
            stripes: (0..STRIPES).map(|_| Mutex::new(CountTable::with_homes(FIRST, usize::MAX))).collect(),
            slots: AtomicUsize::new(0),
            segments: AtomicUsize::new(0),
        }
    }
}

impl Segments {
    /// The most memory that the phase over these segments takes.
    pub fn bytes(&self) -> usize {
        let segments = self.segments.load(Relaxed);
        (segments * TABLE_BYTES).max(self.slots.load(Relaxed) * SLOT_BYTES + segments * WEIGHT_BYTES)
    }

    pub fn count(&self) -> usize {
        self.segments.load(Relaxed)
    }

    /// The symbols of all segments, plus one separator each.
    pub fn slots(&self) -> usize {
        self.slots.load(Relaxed)
    }

    /// Whether they have at most `most` distinct pairs. A few stripes usually suffice: each is a fair sample, and all
    /// together have fewer distinct pairs than one of them times their number.
    pub fn pairs_within(&self, most: usize) -> bool {
        if self.slots() <= most {
            return true;
        }
        let mut pairs = PairMap::with_capacity(1 << 10);
        for (n, stripe) in self.stripes.iter().enumerate() {
            let shown = stripe.lock().unwrap().for_each_sorted(|key, _, _| {
                let mut symbols = SymbolsOf { key, at: 0 };
                let mut left = symbols.next();
                for right in symbols {
                    if let Some(left) = left.replace(right) {
                        pairs.get_or_insert(left, right, 0);
                    }
                }
                if pairs.len() > most { Err(()) } else { Ok(()) }
            });
            if shown.is_err() {
                return false;
            }
            let seen = n + 1;
            if seen >= SAMPLE && seen.is_power_of_two() && pairs.len() * (STRIPES / seen) <= most {
                return true;
            }
        }
        true
    }

    /// Cuts a piece at the pairs that are not `alive` and counts the segments.
    #[inline]
    pub fn add(&self, symbols: &[u32], count: u64, alive: impl Fn(u32, u32) -> bool, key: &mut Vec<u8>) {
        let mut start = 0;
        for end in 1..=symbols.len() {
            if end < symbols.len() && alive(symbols[end - 1], symbols[end]) {
                continue;
            }
            if end - start > 1 {
                key.clear();
                symbols[start..end].iter().for_each(|&symbol| varint::put(key, u64::from(symbol)));
                self.add_segment(key, end - start, count);
            }
            start = end;
        }
    }

    fn add_segment(&self, key: &[u8], symbols: usize, count: u64) {
        // The table is ordered by the hash's high bits, so the stripe is chosen by the low ones.
        let mut table = self.stripes[hash(key) as usize % STRIPES].lock().unwrap();
        let before = table.len();
        table.add(key, count).expect("its size has no limit: the pass checks `bytes`");
        if table.len() > before {
            self.segments.fetch_add(1, Relaxed);
            self.slots.fetch_add(symbols + 1, Relaxed);
        }
    }

    /// Cuts the segments again, after the threshold was raised.
    pub fn recut(&mut self, alive: impl Fn(u32, u32) -> bool) {
        let old = std::mem::take(self);
        let (mut key, mut symbols) = (Vec::new(), Vec::new());
        old.drain(|segment, count| {
            symbols.clear();
            symbols.extend(segment);
            self.add(&symbols, count, &alive, &mut key);
        });
    }

    /// Calls `each` with every segment, in an order that depends only on the segments, and frees each table when done.
    pub fn drain(self, mut each: impl FnMut(SymbolsOf<'_>, u64)) {
        for stripe in self.stripes {
            let table = stripe.into_inner().unwrap();
            let shown = table.for_each_sorted(|key, _, count| {
                each(SymbolsOf { key, at: 0 }, count);
                Ok::<_, std::convert::Infallible>(())
            });
            let Ok(()) = shown;
        }
    }
}

/// The symbols of a segment's key.
pub struct SymbolsOf<'a> {
    key: &'a [u8],
    at: usize,
}

impl Iterator for SymbolsOf<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        (self.at < self.key.len()).then(|| varint::get(self.key, &mut self.at) as u32)
    }
}
