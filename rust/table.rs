//! Byte strings -> counts, in one flat table of exactly known size.
//!
//! A slot is 24 bytes: a key of up to 15 bytes is stored in the slot itself, so that counting a common piece is one
//! load, one compare and one add; a longer key is stored in an arena. The home slot is `hash * slots >> 64`, which
//! works with any number of slots and keeps the table in hash order: reading it sorted only requires sorting each
//! cluster, not the table. For the same reason probing does not wrap around.

use xxhash_rust::xxh3::xxh3_64;

const LONG: u64 = 0xFF;
/// The longest key that is stored in a slot.
pub const INLINE: usize = 15;
/// Slots after the last home, for the last clusters. A cluster that would exceed them makes the table grow (or be
/// full), like a high load.
const SLACK: usize = 256;
const SMALLEST: usize = 1024;

/// A slot as three words, so that a new table is zeroed pages that are not resident yet.
/// `[lo, hi, count]`: lo and the lower bytes of hi are the key, the top byte of hi is its length
/// (0: empty, 0xFF: lo is an arena offset and the low half of hi a part of the hash).
type Slot = [u64; 3];

/// A short key, prepared for the table: its words, and its hash.
#[derive(Clone, Copy)]
pub struct Key {
    lo: u64,
    hi: u64,
    pub hash: u64,
}

/// Folds the 128-bit product: every bit of the result depends on both halves of the key.
#[inline(always)]
fn mix(lo: u64, hi: u64) -> u64 {
    let product = u128::from(lo ^ 0x9E37_79B9_7F4A_7C15) * u128::from(hi ^ 0xD1B5_4A32_D192_ED03);
    let folded = (product as u64) ^ ((product >> 64) as u64);
    folded.wrapping_mul(0xA24B_AED4_963E_E407) ^ (folded >> 32)
}

const MASKS: [(u64, u64); 16] = {
    let mut masks = [(0, 0); 16];
    let mut n = 1;
    while n < 16 {
        let lo = if n >= 8 { u64::MAX } else { (1 << (8 * n)) - 1 };
        let hi = if n <= 8 { 0 } else { (1 << (8 * (n - 8))) - 1 };
        masks[n] = (lo, hi);
        n += 1;
    }
    masks
};

impl Key {
    /// A key that is never in a table.
    pub const EMPTY: Key = Key { lo: u64::MAX, hi: 0, hash: 0 };

    /// The key of `buffer[start..end]` if it is short; it takes only two loads if the buffer has 16 bytes after
    /// `start`.
    #[inline(always)]
    pub fn short(buffer: &[u8], start: usize, end: usize) -> Option<Key> {
        let length = end - start;
        if length > INLINE {
            return None;
        }
        let (lo, hi) = if start + 16 <= buffer.len() {
            let word = |at: usize| u64::from_le_bytes(buffer[at..at + 8].try_into().unwrap());
            let (mask_lo, mask_hi) = MASKS[length];
            (word(start) & mask_lo, word(start + 8) & mask_hi)
        } else {
            let mut padded = [0u8; 16];
            padded[..length].copy_from_slice(&buffer[start..end]);
            (
                u64::from_le_bytes(padded[..8].try_into().unwrap()),
                u64::from_le_bytes(padded[8..].try_into().unwrap()),
            )
        };
        let hi = hi | (length as u64) << 56;
        Some(Key { lo, hi, hash: mix(lo, hi) })
    }

    /// The words of a short key, for caches that store it the same way.
    #[inline(always)]
    pub fn words(&self) -> (u64, u64) {
        (self.lo, self.hi)
    }
}

/// Prefetches a cache line.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// The hash by which tables, runs and partitions are ordered.
#[inline]
pub fn hash(key: &[u8]) -> u64 {
    match Key::short(key, 0, key.len()) {
        Some(key) => key.hash,
        None => xxh3_64(key),
    }
}

/// The table has reached its size limit: empty it, then add again.
#[derive(Debug)]
pub struct Full;

pub struct CountTable {
    slots: Vec<Slot>,
    homes: usize,
    used: usize,
    arena: Vec<u8>,
    max_bytes: usize,
}

impl CountTable {
    /// A table that never takes more than `max_bytes`, even while growing.
    pub fn new(max_bytes: usize) -> Self {
        CountTable::with_homes(SMALLEST, max_bytes)
    }

    /// With an initial capacity of about `homes` keys, which matters if there are many tables.
    pub fn with_homes(homes: usize, max_bytes: usize) -> Self {
        let mut table = CountTable { slots: Vec::new(), homes: 0, used: 0, arena: Vec::new(), max_bytes };
        table.reset(homes);
        table
    }

    /// The least `max_bytes` with which a table works.
    pub const fn smallest() -> usize {
        (SMALLEST + SLACK) * size_of::<Slot>() + (64 << 10)
    }

    fn reset(&mut self, homes: usize) {
        self.homes = homes;
        self.slots = vec![[0; 3]; homes + SLACK];
        self.used = 0;
    }

    pub fn len(&self) -> usize {
        self.used
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>() + self.arena.capacity()
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.homes as u128) >> 64) as usize
    }

    /// Prefetches the slot's cache line before `add`.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        prefetch(self.slots.as_ptr().wrapping_add(self.home(hash)));
    }

    #[inline(always)]
    pub fn add_short(&mut self, key: &Key, count: u64) -> Result<(), Full> {
        loop {
            let mut at = self.home(key.hash);
            while let Some(slot) = self.slots.get_mut(at) {
                if slot[0] == key.lo && slot[1] == key.hi {
                    slot[2] += count;
                    return Ok(());
                }
                if slot[1] == 0 {
                    if self.used * 4 >= self.homes * 3 {
                        break;
                    }
                    *slot = [key.lo, key.hi, count];
                    self.used += 1;
                    return Ok(());
                }
                at += 1;
            }
            self.grow()?;
        }
    }

    #[cold]
    #[inline(never)]
    fn add_long(&mut self, key: &[u8], count: u64) -> Result<(), Full> {
        let hash = xxh3_64(key);
        let tag = LONG << 56 | (hash & 0xFFFF_FFFF);
        loop {
            let mut at = self.home(hash);
            while at < self.slots.len() {
                let slot = self.slots[at];
                if slot[1] == tag && self.long_key(slot[0]) == key {
                    self.slots[at][2] += count;
                    return Ok(());
                }
                if slot[1] == 0 {
                    if self.used * 4 >= self.homes * 3 {
                        break;
                    }
                    let offset = self.push_long(key)?;
                    self.slots[at] = [offset, tag, count];
                    self.used += 1;
                    return Ok(());
                }
                at += 1;
            }
            self.grow()?;
        }
    }

    #[inline]
    pub fn add(&mut self, key: &[u8], count: u64) -> Result<(), Full> {
        match Key::short(key, 0, key.len()) {
            Some(key) => self.add_short(&key, count),
            None => self.add_long(key, count),
        }
    }

    fn push_long(&mut self, key: &[u8]) -> Result<u64, Full> {
        let need = self.arena.len() + 4 + key.len();
        if need > self.arena.capacity() {
            // A third more at a time: the doubling of a `Vec` could exceed the limit.
            let capacity = need.max(self.arena.capacity() + self.arena.capacity() / 3).max(4096);
            if self.bytes() + capacity > self.max_bytes {
                return Err(Full);
            }
            self.arena.reserve_exact(capacity - self.arena.len());
        }
        let offset = self.arena.len() as u64;
        self.arena.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.arena.extend_from_slice(key);
        Ok(offset)
    }

    fn long_key(&self, offset: u64) -> &[u8] {
        let at = offset as usize;
        let length = u32::from_le_bytes(self.arena[at..at + 4].try_into().unwrap()) as usize;
        &self.arena[at + 4..at + 4 + length]
    }

    /// Doubles the size, or grows to the limit if that is at least a quarter more.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> Result<(), Full> {
        let free = self.max_bytes.saturating_sub(self.bytes()) / size_of::<Slot>();
        let homes = (self.homes * 2).min(free.saturating_sub(SLACK));
        if homes < self.homes + self.homes / 4 {
            return Err(Full);
        }
        let old = std::mem::take(&mut self.slots);
        self.reset(homes);
        for slot in old {
            if slot[1] != 0 {
                let mut at = self.home(self.slot_hash(&slot));
                while self.slots.get(at).is_some_and(|slot| slot[1] != 0) {
                    at += 1;
                }
                if at == self.slots.len() {
                    self.slots.push(slot); // only with keys that were chosen to collide
                } else {
                    self.slots[at] = slot;
                }
                self.used += 1;
            }
        }
        Ok(())
    }

    fn slot_hash(&self, slot: &Slot) -> u64 {
        if slot[1] >> 56 == LONG { xxh3_64(self.long_key(slot[0])) } else { mix(slot[0], slot[1]) }
    }

    /// Calls `each(key, hash, count)` in the order of (hash, key), which does not depend on the table's size and
    /// history.
    pub fn for_each_sorted<E>(
        &self,
        mut each: impl FnMut(&[u8], u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut cluster: Vec<(u64, Slot)> = Vec::new();
        let mut flush = |cluster: &mut Vec<(u64, Slot)>| {
            cluster.sort_unstable_by(|a, b| {
                a.0.cmp(&b.0).then_with(|| self.with_key(&a.1, |x| self.with_key(&b.1, |y| x.cmp(y))))
            });
            for (hash, slot) in cluster.drain(..) {
                self.with_key(&slot, |key| each(key, hash, slot[2]))?;
            }
            Ok(())
        };
        for slot in &self.slots {
            if slot[1] == 0 {
                flush(&mut cluster)?;
            } else {
                cluster.push((self.slot_hash(slot), *slot));
            }
        }
        flush(&mut cluster)
    }

    /// Calls `each` with every key whose hash begins with the bits of `part`, in no particular order.
    pub fn for_each_in(&self, part: u64, bits: u32, mut each: impl FnMut(&[u8], u64, u64)) {
        let first = self.home(part << (64 - bits));
        let last = if part + 1 == 1 << bits { self.homes } else { self.home((part + 1) << (64 - bits)) };
        for (at, slot) in self.slots.iter().enumerate().skip(first) {
            if slot[1] == 0 {
                if at >= last {
                    break;
                }
            } else {
                let hash = self.slot_hash(slot);
                if hash >> (64 - bits) == part {
                    self.with_key(slot, |key| each(key, hash, slot[2]));
                }
            }
        }
    }

    fn with_key<T>(&self, slot: &Slot, then: impl FnOnce(&[u8]) -> T) -> T {
        let tag = slot[1] >> 56;
        if tag == LONG {
            return then(self.long_key(slot[0]));
        }
        let mut key = [0u8; 16];
        key[..8].copy_from_slice(&slot[0].to_le_bytes());
        key[8..].copy_from_slice(&slot[1].to_le_bytes());
        then(&key[..tag as usize])
    }

    /// Empties the table and keeps its slots.
    pub fn clear(&mut self) {
        self.slots.fill([0; 3]);
        self.arena.clear();
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn drained(table: &CountTable) -> Vec<(Vec<u8>, u64)> {
        let mut all = Vec::new();
        let mut last = None;
        table
            .for_each_sorted(|key, hash, count| {
                assert_eq!(hash, super::hash(key));
                assert!(last.clone().is_none_or(|last| last < (hash, key.to_vec())));
                last = Some((hash, key.to_vec()));
                all.push((key.to_vec(), count));
                Ok::<_, ()>(())
            })
            .unwrap();
        all
    }

    proptest! {
        #[test]
        fn counts_like_a_map(keys in prop::collection::vec(prop::collection::vec(0u8..4, 1..40), 0..3000)) {
            let mut table = CountTable::new(1 << 20);
            let mut oracle = BTreeMap::new();
            for (n, key) in keys.iter().enumerate() {
                table.add(key, n as u64).unwrap();
                *oracle.entry(key.clone()).or_insert(0) += n as u64;
            }
            prop_assert_eq!(table.len(), oracle.len());
            let found: BTreeMap<_, _> = drained(&table).into_iter().collect();
            prop_assert_eq!(found, oracle);
        }
    }

    #[test]
    fn fills_up_within_its_bytes_and_loses_nothing() {
        let max = 300_000;
        let mut table = CountTable::new(max);
        let (mut kept, mut spilled) = (0u64, BTreeMap::new());
        for n in 0..100_000u64 {
            let key = format!("{:0width$}", n, width = 1 + (n % 30) as usize);
            if table.add(key.as_bytes(), 1).is_err() {
                for (key, count) in drained(&table) {
                    *spilled.entry(key).or_insert(0u64) += count;
                }
                table.clear();
                table.add(key.as_bytes(), 1).unwrap();
            }
            assert!(table.bytes() <= max, "{} bytes", table.bytes());
            kept += 1;
        }
        for (key, count) in drained(&table) {
            *spilled.entry(key).or_insert(0) += count;
        }
        assert_eq!(spilled.values().sum::<u64>(), kept);
    }

    #[test]
    fn keys_at_the_end_of_a_buffer_equal_keys_in_its_middle() {
        let text = b"hello world and some more text hello";
        let middle = Key::short(text, 0, 5).unwrap();
        let end = Key::short(text, text.len() - 5, text.len()).unwrap();
        assert_eq!((middle.words(), middle.hash), (end.words(), end.hash));
    }
}
