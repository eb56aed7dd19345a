//! A keyed permutation of 0..n in closed form: shuffling without storing the order.
//!
//! A Feistel network over pairs (left, right) with `left` below ceil(sqrt(n)) and `right` below n divided by that. Each
//! round adds a hash of one half to the other, modulo its size, which is reversible: so all rounds together permute the
//! pairs. There are up to sqrt(n) more pairs than indices; an index that maps to one of these is mapped again until it
//! is below n (cycle walking), which is still a permutation. About 60 ns per index.

/// Four are enough for large n; for small n a round has so few different hashes that more are needed for a uniform mix.
const ROUNDS: usize = 8;

pub struct Shuffle {
    length: u64,
    left: u64,
    right: u64,
    keys: [u64; ROUNDS],
}

impl Shuffle {
    pub fn new(length: u64, key: u64) -> Shuffle {
        let root = length.isqrt();
        let left = if root * root < length { root + 1 } else { root.max(1) };
        let right = length.div_ceil(left).max(1);
        let mut state = key;
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(GOLDEN);
            mixed(state)
        });
        Shuffle { length, left, right, keys }
    }

    /// The value at `index`, which is below the length.
    pub fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.length);
        let mut value = index;
        loop {
            let (mut left, mut right) = (value / self.right, value % self.right);
            for pair in self.keys.chunks_exact(2) {
                left = added(left, mixed(right ^ pair[0]), self.left);
                right = added(right, mixed(left ^ pair[1]), self.right);
            }
            value = left * self.right + right;
            if value < self.length {
                return value;
            }
        }
    }
}

/// Derives a key: the same words give the same key, other words another.
pub fn key(words: &[u64]) -> u64 {
    words.iter().fold(0, |key, word| mixed(mixed(key.wrapping_add(GOLDEN)) ^ word))
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finalizer of SplitMix64.
fn mixed(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// `value` plus the hash, modulo `size`. The hash is scaled into range by a multiplication instead of a division.
fn added(value: u64, hash: u64, size: u64) -> u64 {
    let sum = value + ((u128::from(hash) * u128::from(size)) >> 64) as u64;
    if sum >= size { sum - size } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_permutation(length: u64, key: u64) -> bool {
        let shuffle = Shuffle::new(length, key);
        let mut seen = vec![false; length as usize];
        (0..length).for_each(|index| seen[shuffle.at(index) as usize] = true);
        seen.into_iter().all(|one| one)
    }

    #[test]
    fn every_small_length_is_permuted() {
        assert!((1..=600).all(|length| is_permutation(length, length * 77)));
    }

    #[test]
    fn every_order_of_four_is_about_equally_frequent() {
        let mut counts = std::collections::HashMap::new();
        for seed in 0..24_000 {
            let shuffle = Shuffle::new(4, key(&[seed]));
            *counts.entry([0, 1, 2, 3].map(|index| shuffle.at(index))).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 24);
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn neighbors_are_scattered() {
        // In a random permutation of any length, about two pairs of neighbors stay neighbors.
        let length = 100_000;
        let shuffle = Shuffle::new(length, 5);
        let kept = (1..length).filter(|&at| shuffle.at(at).abs_diff(shuffle.at(at - 1)) == 1).count();
        assert!(kept < 12, "{kept}");
    }

    proptest! {
        #[test]
        fn any_length_is_permuted(length in 1u64..20_000, key in any::<u64>()) {
            prop_assert!(is_permutation(length, key));
        }

        #[test]
        fn large_lengths_stay_in_range_and_distinct(length in 1u64..1 << 62, seed in any::<u64>(), first in any::<u64>()) {
            let shuffle = Shuffle::new(length, seed);
            let indices: std::collections::BTreeSet<u64> =
                (0..200).map(|step| first.wrapping_add(step) % length).collect();
            let values: std::collections::BTreeSet<u64> = indices.iter().map(|&index| shuffle.at(index)).collect();
            prop_assert!(values.iter().all(|&value| value < length));
            prop_assert_eq!(values.len(), indices.len());
        }
    }
}
