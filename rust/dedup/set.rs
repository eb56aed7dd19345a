//! The distinct hashes of a slice in one flat table: 16 bytes per slot, at most three quarters full.
//!
//! A hash's home slot is its position in the slice's range, scaled to the table (any number of slots works). So slots
//! are nearly in hash order: looking up sorted hashes scans the table, and extracting them sorted only requires sorting
//! within runs of used slots. Entries never move, so separate bitmaps can refer to slots.

use crate::rss::prefer_large_pages;
use crate::table::prefetch;

/// A slice that fixes all but 8 bits has 256 different hashes, which must fit.
pub const MIN_SLOTS: usize = 352;
/// The most bits that a slice may fix, so that this holds.
pub const MAX_FIXED_BITS: u32 = 120;

#[derive(Debug, PartialEq, Eq)]
pub enum Added {
    New,
    Seen,
    /// It is not in the table, and the table is full.
    Full,
}

pub struct Distinct {
    /// 0 is an empty slot. The hash 0 is stored in `zero`; its slot number is one past the last.
    slots: Vec<u128>,
    zero: bool,
    used: usize,
    limit: usize,
    /// Leading bits that all hashes of the slice share.
    fixed: u32,
}

impl Distinct {
    pub fn new(slots: usize) -> Self {
        let slots = vec![0; slots.max(MIN_SLOTS)];
        // Without it, a third of the time is page faults and address translation.
        prefer_large_pages(slots.as_ptr(), size_of_val(&slots[..]));
        let limit = slots.len() / 4 * 3;
        Distinct { slots, zero: false, used: 0, limit, fixed: 0 }
    }

    /// The number of slots that are certainly enough for `hashes`.
    pub fn slots_for(hashes: u64) -> usize {
        (hashes.div_ceil(3).saturating_mul(4)).saturating_add(4).min(usize::MAX as u64) as usize
    }

    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub fn begin(&mut self, fixed: u32) {
        if self.used > 0 {
            self.slots.fill(0);
        }
        (self.zero, self.used, self.fixed) = (false, 0, fixed);
    }

    #[inline(always)]
    fn home(&self, hash: u128) -> usize {
        let place = (hash << self.fixed >> 64) as u64;
        ((u128::from(place) * self.capacity() as u128) >> 64) as usize
    }

    #[inline(always)]
    pub fn prefetch(&self, hash: u128) {
        prefetch(self.slots.as_ptr().wrapping_add(self.home(hash)));
    }

    /// The slot of a hash, or the empty one where it would go.
    #[inline(always)]
    fn probe(&self, hash: u128) -> usize {
        let mut slot = self.home(hash);
        while self.slots[slot] != hash && self.slots[slot] != 0 {
            slot += 1;
            if slot == self.capacity() {
                slot = 0;
            }
        }
        slot
    }

    #[inline(always)]
    pub fn add(&mut self, hash: u128) -> Added {
        if hash == 0 {
            let seen = std::mem::replace(&mut self.zero, true);
            return if seen { Added::Seen } else { Added::New };
        }
        let slot = self.probe(hash);
        if self.slots[slot] == hash {
            return Added::Seen;
        }
        if self.used == self.limit {
            return Added::Full;
        }
        self.slots[slot] = hash;
        self.used += 1;
        Added::New
    }

    /// The slot of a hash, if it is in the set.
    #[inline(always)]
    pub fn slot(&self, hash: u128) -> Option<usize> {
        if hash == 0 {
            return self.zero.then_some(self.capacity());
        }
        let slot = self.probe(hash);
        (self.slots[slot] == hash).then_some(slot)
    }

    /// The hashes whose slots are not marked, ascending. The contents of the table are lost: call `begin` next.
    pub fn take_sorted(&mut self, marks: &Marks) -> &[u128] {
        // Unmarked hashes are moved to the front and sorted, one run of used slots at a time.
        let (mut kept, mut run) = (0, 0);
        // The first run ends at `first`; its last `around` hashes belong to the end of the table and wrapped around.
        let (mut first, mut around) = (None, 0);
        for slot in 0..self.capacity() {
            let hash = self.slots[slot];
            if hash == 0 {
                self.slots[run..kept].sort_unstable();
                run = kept;
                first.get_or_insert(kept);
            } else if !marks.has(slot) {
                around += usize::from(first.is_none() && self.home(hash) > slot);
                self.slots[kept] = hash;
                kept += 1;
            }
        }
        let first = first.expect("a quarter of the slots is empty");
        self.slots[first - around..kept].rotate_left(around);
        self.slots[run - around..kept].sort_unstable();
        if self.zero && !marks.has(self.capacity()) {
            self.slots.copy_within(..kept, 1);
            self.slots[0] = 0;
            kept += 1;
        }
        &self.slots[..kept]
    }
}

/// A bit for every slot; no memory at all if none is ever set.
#[derive(Default)]
pub struct Marks(Vec<u64>);

impl Marks {
    pub fn new(set: &Distinct) -> Self {
        Marks(vec![0; set.capacity() / 64 + 1])
    }

    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    #[inline(always)]
    pub fn has(&self, slot: usize) -> bool {
        self.0.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 != 0)
    }

    /// Sets a bit and returns whether it was set before.
    #[inline(always)]
    pub fn set(&mut self, slot: usize) -> bool {
        let word = &mut self.0[slot / 64];
        let before = *word >> (slot % 64) & 1 != 0;
        *word |= 1 << (slot % 64);
        before
    }
}
