//! MinHash: texts that share many shingles probably share the key of a band.
//!
//! Function n of a shingle is `(x ^ MASKS[n]) * FACTORS[n]` on 32 bits, where x is the upper half of the shingle's hash.
//! The signature of a text is the least value of each function; a band is a few of them, hashed together to a key.

use xxhash_rust::xxh3::xxh3_64;

/// The most functions.
pub const FUNCTIONS: usize = 128;
/// Functions that are computed together: their least values stay in registers.
const TOGETHER: usize = 32;
/// Shingles that are collected before they are added.
const BLOCK: usize = 256;

const fn mixed(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

const fn constants(first: u64, set: u32) -> [u32; FUNCTIONS] {
    let mut all = [0; FUNCTIONS];
    let mut n = 0;
    while n < FUNCTIONS {
        all[n] = (mixed(first + n as u64) >> 32) as u32 | set;
        n += 1;
    }
    all
}

const MASKS: [u32; FUNCTIONS] = constants(1, 0);
/// Odd, so that no two values become one.
const FACTORS: [u32; FUNCTIONS] = constants(1 + FUNCTIONS as u64, 1);

/// Collects the shingles of one text after another.
pub struct Signature {
    /// Functions in use.
    functions: usize,
    least: [u32; FUNCTIONS],
    block: Vec<u32>,
    any: bool,
}

impl Signature {
    pub fn new(functions: usize) -> Signature {
        assert!(functions <= FUNCTIONS);
        Signature { functions, least: [u32::MAX; FUNCTIONS], block: Vec::with_capacity(BLOCK), any: false }
    }

    #[inline]
    pub fn add(&mut self, shingle: u64) {
        self.block.push((shingle >> 32) as u32);
        if self.block.len() == BLOCK {
            self.add_block();
        }
    }

    fn add_block(&mut self) {
        self.any |= !self.block.is_empty();
        let used = self.functions.next_multiple_of(TOGETHER).min(FUNCTIONS);
        lower(&mut self.least[..used], &self.block);
        self.block.clear();
    }

    /// Calls `each` with the key of every band of `rows` functions, and starts anew; without shingles there are none.
    pub fn keys(&mut self, rows: usize, mut each: impl FnMut(u64)) {
        self.add_block();
        if self.any {
            let mut bytes = [0; 4 + 4 * FUNCTIONS];
            for (band, rows) in self.least[..self.functions].chunks_exact(rows).enumerate() {
                let numbers = std::iter::once(band as u32).chain(rows.iter().copied());
                let length = 4 * (1 + rows.len());
                for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
                    place.copy_from_slice(&number.to_le_bytes());
                }
                each(xxh3_64(&bytes[..length]));
            }
        }
        self.least = [u32::MAX; FUNCTIONS];
        self.any = false;
    }
}

fn lower(least: &mut [u32], shingles: &[u32]) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has it.
        return unsafe { lower_avx2(least, shingles) };
    }
    lower_portable(least, shingles);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn lower_avx2(least: &mut [u32], shingles: &[u32]) {
    lower_portable(least, shingles);
}

#[inline(always)]
fn lower_portable(least: &mut [u32], shingles: &[u32]) {
    for (n, least) in least.chunks_exact_mut(TOGETHER).enumerate() {
        let masks: &[u32; TOGETHER] = MASKS[n * TOGETHER..][..TOGETHER].try_into().expect("of this length");
        let factors: &[u32; TOGETHER] =
            FACTORS[n * TOGETHER..][..TOGETHER].try_into().expect("of this length");
        let mut lowest: [u32; TOGETHER] = (&*least).try_into().expect("of this length");
        for &shingle in shingles {
            for lane in 0..TOGETHER {
                lowest[lane] = lowest[lane].min((shingle ^ masks[lane]).wrapping_mul(factors[lane]));
            }
        }
        least.copy_from_slice(&lowest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(shingles: impl Iterator<Item = u64>, functions: usize, rows: usize) -> Vec<u64> {
        let (mut signature, mut keys) = (Signature::new(functions), Vec::new());
        shingles.for_each(|shingle| signature.add(shingle));
        signature.keys(rows, |key| keys.push(key));
        keys
    }

    #[test]
    fn the_vectors_give_the_same_numbers() {
        let shingles: Vec<u32> = (0..1000).map(|n| mixed(n) as u32).collect();
        let (mut fast, mut slow) = ([u32::MAX; FUNCTIONS], [u32::MAX; FUNCTIONS]);
        lower(&mut fast, &shingles);
        for (n, least) in slow.iter_mut().enumerate() {
            *least = shingles.iter().map(|x| (x ^ MASKS[n]).wrapping_mul(FACTORS[n])).min().unwrap();
        }
        assert_eq!(fast, slow);
    }

    #[test]
    fn a_signature_is_of_the_set() {
        let once = keys((0..500).map(mixed), 128, 8);
        let twice = keys((0..500).rev().chain(0..500).map(mixed), 128, 8);
        assert_eq!(once.len(), 16);
        assert_eq!(once, twice);
        assert!(keys(std::iter::empty(), 128, 8).is_empty());
    }

    /// The share of pairs that meet in a band is what the formula says.
    #[test]
    fn bands_find_what_the_formula_promises() {
        let (bands, rows) = (16, 8);
        for (common, own) in [(80u64, 10u64), (85, 7), (70, 15), (400, 50)] {
            let similarity = common as f64 / (common + 2 * own) as f64;
            let (mut met, trials) = (0, 1500);
            for trial in 0..trials {
                let base = trial * 1_000_000;
                let shared = base..base + common;
                let one =
                    keys(shared.clone().chain(base + 500_000..base + 500_000 + own).map(mixed), 128, rows);
                let two = keys(shared.chain(base + 600_000..base + 600_000 + own).map(mixed), 128, rows);
                met += u64::from(one.iter().zip(&two).any(|(one, two)| one == two));
            }
            let promised = 1.0 - (1.0 - similarity.powi(rows as i32)).powi(bands);
            let found = met as f64 / trials as f64;
            assert!((found - promised).abs() < 0.03, "{similarity}: {found} instead of {promised}");
        }
    }
}
