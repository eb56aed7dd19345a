//! Pairs of symbols -> a number: the index of a merge, or of a candidate for one.

/// No value; no symbol reaches it either.
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

/// Open addressing over (pair, value) at a load of at most a half; pairs are never removed.
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

    /// Where the pair is, or would be.
    #[inline(always)]
    fn place(&self, pair: u64) -> usize {
        let mut at = (hash(pair) >> self.shift) as usize;
        while self.slots[at].0 != pair && self.slots[at].0 != EMPTY {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    /// The value of the pair, `NONE` where it has none.
    #[inline(always)]
    pub fn get(&self, left: u32, right: u32) -> u32 {
        self.slots[self.place(key(left, right))].1 // an empty slot's value is NONE
    }

    /// The value of the pair; where it has none yet, `value` becomes it.
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

    /// Gives the pair this value, whatever it had.
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
    }
}
