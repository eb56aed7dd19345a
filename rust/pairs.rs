//! Pairs of symbols -> a number: the index of a merge, or of a candidate for one.

/// No value; it is not a symbol either.
pub const NONE: u32 = u32::MAX;

#[inline(always)]
pub fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

#[inline(always)]
pub fn hash(pair: u64) -> u64 {
    let product = u128::from(pair ^ 0x51_7C_C1_B7_27_22_0A_95) * 0x9E37_79B9_7F4A_7C15;
    (product >> 64) as u64 ^ product as u64
}

/// Open addressing over (pair, value), at most half full; pairs are never removed.
pub struct PairMap {
    slots: Vec<(u64, u32)>,
    shift: u32,
    used: usize,
}

const EMPTY: u64 = u64::MAX;

impl PairMap {
    pub fn with_capacity(pairs: usize) -> Self {
        let size = (pairs * 2).next_power_of_two().max(16);
        PairMap { slots: vec![(EMPTY, NONE); size], shift: 64 - size.trailing_zeros(), used: 0 }
    }

    pub fn len(&self) -> usize {
        self.used
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub fn bytes(&self) -> usize {
        self.slots.len() * size_of::<(u64, u32)>()
    }

    /// Every pair that has a value, in no particular order.
    pub fn pairs(&self) -> impl Iterator<Item = u64> {
        self.slots.iter().map(|slot| slot.0).filter(|&pair| pair != EMPTY)
    }

    /// The slot of the pair, or where it would go.
    #[inline(always)]
    fn place(&self, pair: u64) -> usize {
        let mut at = (hash(pair) >> self.shift) as usize;
        while self.slots[at].0 != pair && self.slots[at].0 != EMPTY {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    /// The value of the pair, `NONE` if it has none.
    #[inline(always)]
    pub fn get(&self, left: u32, right: u32) -> u32 {
        self.slots[self.place(key(left, right))].1 // an empty slot's value is NONE
    }

    /// The value of the pair; if it has none yet, it is set to `value`.
    #[inline]
    pub fn get_or_insert(&mut self, left: u32, right: u32, value: u32) -> u32 {
        if self.used * 2 >= self.slots.len() {
            self.grow();
        }
        let pair = key(left, right);
        let place = self.place(pair);
        let slot = &mut self.slots[place];
        if slot.0 == EMPTY {
            *slot = (pair, value);
            self.used += 1;
        }
        slot.1
    }

    /// Sets the value of the pair.
    pub fn set(&mut self, left: u32, right: u32, value: u32) {
        self.get_or_insert(left, right, value);
        let place = self.place(key(left, right));
        self.slots[place].1 = value;
    }

    fn grow(&mut self) {
        let old = std::mem::replace(self, PairMap::with_capacity(self.slots.len()));
        for (pair, value) in old.slots {
            if pair != EMPTY {
                self.get_or_insert((pair >> 32) as u32, pair as u32, value);
            }
        }
    }
}

/// A finished map, made for fast reads: if pairs and values are small enough, a slot is one word, so that the map of
/// any published vocabulary fits into the CPU core's own cache.
pub enum FrozenPairs {
    /// Left and right symbol (20 bits each), value (24 bits).
    Compact {
        slots: Vec<u64>,
        shift: u32,
    },
    Wide(PairMap),
}

const SYMBOL_BITS: u32 = 20;
const VALUE_BITS: u32 = 24;

impl FrozenPairs {
    pub fn new(map: PairMap) -> Self {
        let used = || map.slots.iter().filter(|slot| slot.0 != EMPTY);
        if !used().all(|&(pair, value)| is_compact(pair) && value < (1 << VALUE_BITS) - 1) {
            return FrozenPairs::Wide(map);
        }
        let mut slots = vec![EMPTY; map.slots.len()];
        for &(pair, value) in used() {
            let mut at = (hash(pair) >> map.shift) as usize;
            while slots[at] != EMPTY {
                at = (at + 1) & (slots.len() - 1);
            }
            slots[at] = compact(pair) << VALUE_BITS | u64::from(value);
        }
        FrozenPairs::Compact { slots, shift: map.shift }
    }

    /// The value of the pair, `NONE` if it has none. `hash` is the hash of the pair.
    #[inline(always)]
    pub fn get(&self, pair: u64, hash: u64) -> u32 {
        let (slots, shift) = match self {
            FrozenPairs::Compact { slots, shift } => (slots, shift),
            FrozenPairs::Wide(map) => return map.slots[map.place(pair)].1,
        };
        if !is_compact(pair) {
            return NONE;
        }
        let wanted = compact(pair);
        let mut at = (hash >> shift) as usize;
        loop {
            let slot = slots[at];
            if slot == EMPTY {
                return NONE;
            }
            if slot >> VALUE_BITS == wanted {
                return slot as u32 & ((1 << VALUE_BITS) - 1);
            }
            at = (at + 1) & (slots.len() - 1);
        }
    }
}

#[inline(always)]
fn compact(pair: u64) -> u64 {
    pair >> 32 << SYMBOL_BITS | pair & 0xFFFF_FFFF
}

#[inline(always)]
fn is_compact(pair: u64) -> bool {
    pair >> (32 + SYMBOL_BITS) == 0 && pair as u32 >> SYMBOL_BITS == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn finds_what_a_map_finds(pairs in prop::collection::vec((0u32..50, 0u32..50), 0..2000)) {
            let mut map = PairMap::with_capacity(0);
            let mut oracle = HashMap::new();
            for (n, &(left, right)) in pairs.iter().enumerate() {
                let expected = *oracle.entry((left, right)).or_insert(n as u32);
                prop_assert_eq!(map.get_or_insert(left, right, n as u32), expected);
            }
            prop_assert_eq!(map.len(), oracle.len());
            for left in 0..50 {
                for right in 0..50 {
                    prop_assert_eq!(map.get(left, right), *oracle.get(&(left, right)).unwrap_or(&NONE));
                }
            }
        }

        #[test]
        fn a_frozen_map_finds_the_same(
            pairs in prop::collection::vec((0u32..40, 0u32..40), 0..500),
            scale in prop::sample::select(vec![1u32, 1 << 14, 1 << 17, 1 << 26]),
            value in prop::sample::select(vec![0, 1 << 23, (1 << 24) - 300, u32::MAX - 600]),
        ) {
            let mut map = PairMap::with_capacity(0);
            for (n, &(left, right)) in pairs.iter().enumerate() {
                map.set(left * scale, right * scale, value + n as u32);
            }
            let expected: Vec<u32> = (0..1600).map(|n| map.get(n / 40 * scale, n % 40 * scale)).collect();
            let frozen = FrozenPairs::new(map);
            for n in 0..1600 {
                let pair = key(n / 40 * scale, n % 40 * scale);
                prop_assert_eq!(frozen.get(pair, hash(pair)), expected[n as usize]);
                // Symbols that agree only in the bits that a slot keeps.
                for pair in [pair | 1 << 63, pair | 1 << 31].into_iter().filter(|_| scale < 1 << 26) {
                    prop_assert_eq!(frozen.get(pair, hash(pair)), NONE);
                }
            }
        }
    }
}
