//! Up to 64 ASCII bytes at once, as bit masks: bit i is for the byte at `base + i`.
//!
//! A block always begins where a piece begins, so no state is carried from block to block: the piece at the end of a
//! block is not emitted but begins the next one. That reads about a tenth of the text twice, but avoids a carried state
//! that would differ for every pattern. A start that depends on a byte after the block is not reported: a reported
//! start is certain, a missing one is found by the next block.

#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

pub(super) const WIDTH: usize = 64;

pub(super) struct Block {
    base: usize,
    /// The bytes before the first that is not ASCII. All other masks are 0 outside.
    valid: u64,
    /// The bytes that are not ASCII.
    pub foreign: u64,
    pub letters: u64,
    pub upper: u64,
    pub digits: u64,
    pub white: u64,
    pub spaces: u64,
    pub newlines: u64,
    pub others: u64,
    pub apostrophes: u64,
    pub slashes: u64,
}

impl Block {
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn load(text: &[u8], base: usize) -> Block {
        use std::arch::x86_64::*;

        let bytes: &[u8; WIDTH] = text[base..base + WIDTH].try_into().expect("64 bytes");
        // SAFETY: SSE2 is part of x86_64, and the loads stay within `bytes`.
        let lanes = unsafe {
            let at = bytes.as_ptr().cast::<__m128i>();
            [0, 1, 2, 3].map(|lane| _mm_loadu_si128(at.add(lane)))
        };
        let gather = |test: &dyn Fn(__m128i) -> __m128i| {
            let mut mask = 0;
            for (lane, &bytes) in lanes.iter().enumerate() {
                // SAFETY: SSE2 is part of x86_64.
                let bits = unsafe { _mm_movemask_epi8(test(bytes)) };
                mask |= u64::from(bits as u16) << (16 * lane);
            }
            mask
        };
        // SAFETY (each `unsafe` below): SSE2 is part of x86_64.
        let splat = |byte: u8| unsafe { _mm_set1_epi8(byte as i8) };
        let equal = |bytes, byte| unsafe { _mm_cmpeq_epi8(bytes, splat(byte)) };
        // Unsigned `first <= byte < first + count`: shift the range to the bottom of the signed
        // numbers, then compare.
        let within = |bytes, first: u8, count: u8| unsafe {
            let moved = _mm_add_epi8(bytes, splat(0x80u8.wrapping_sub(first)));
            _mm_cmplt_epi8(moved, splat(0x80 + count))
        };
        let either = |left, right| unsafe { _mm_or_si128(left, right) };
        let lower_case = |bytes| unsafe { _mm_or_si128(bytes, splat(0x20)) };

        let foreign = gather(&|bytes| bytes);
        let valid = foreign.wrapping_sub(1) & !foreign;
        let letters = valid & gather(&|bytes| within(lower_case(bytes), b'a', 26));
        let digits = valid & gather(&|bytes| within(bytes, b'0', 10));
        let spaces = valid & gather(&|bytes| equal(bytes, b' '));
        let white = spaces | valid & gather(&|bytes| within(bytes, 0x09, 5));
        Block {
            base,
            valid,
            foreign,
            letters,
            upper: valid & gather(&|bytes| within(bytes, b'A', 26)),
            digits,
            white,
            spaces,
            newlines: valid & gather(&|bytes| either(equal(bytes, b'\n'), equal(bytes, b'\r'))),
            others: valid & !(letters | digits | white),
            apostrophes: valid & gather(&|bytes| equal(bytes, b'\'')),
            slashes: valid & gather(&|bytes| equal(bytes, b'/')),
        }
    }

    /// The bytes whose next byte is known and of `class`.
    #[inline]
    pub fn followed_by(&self, class: u64) -> u64 {
        (class & self.valid) >> 1
    }

    /// The start of every group of `size` (1 or 3) digits.
    #[inline]
    pub fn digit_groups(&self, size: usize) -> u64 {
        let digits = self.digits;
        if size == 1 {
            return digits;
        }
        let mut groups = digits & !(digits << 1);
        let fourth = digits & digits << 1 & digits << 2 & digits << 3;
        let mut latest = groups;
        while latest << 3 & fourth != 0 {
            latest = latest << 3 & fourth;
            groups |= latest;
        }
        groups
    }

    /// The white space right after the last line end of each run of `white`.
    #[inline]
    pub fn after_last_newline(&self, white: u64, newlines: u64) -> u64 {
        let horizontal = white & !newlines;
        let candidates = horizontal & newlines << 1;
        // The sum has a bit where the run of each candidate ends.
        let (ends, runs_out) = horizontal.overflowing_add(candidates);
        if !runs_out && ends & (newlines | !self.valid) == 0 {
            return candidates;
        }
        let mut certain = 0;
        for at in bits(candidates) {
            let end = at + (horizontal >> at).trailing_ones();
            if end < WIDTH as u32 && self.valid & !newlines & 1 << end != 0 {
                certain |= 1 << at;
            }
        }
        certain
    }

    /// The bytes `[\r\n/]*` after `[^\s\p{L}\p{N}]+`, from the first line end on.
    #[inline]
    pub fn tail_of_others(&self) -> u64 {
        let tail = self.newlines | self.slashes;
        let first = self.newlines & self.others << 1;
        if self.slashes & self.newlines << 1 == 0 {
            // At most one `first` in each run of `tail`: the carry clears the rest of the run.
            return tail & !tail.wrapping_add(first);
        }
        let mut found = first;
        loop {
            let more = found << 1 & tail & !found;
            if more == 0 {
                return found;
            }
            found |= more;
        }
    }

    /// `starts`, with the contractions at `apostrophes` as pieces.
    #[inline]
    pub fn with_contractions(
        &self,
        mut starts: u64,
        apostrophes: u64,
        contraction_end: impl Fn(usize) -> Option<usize>,
    ) -> u64 {
        for at in bits(apostrophes) {
            let at = at as usize;
            if let Some(end) = contraction_end(self.base + at) {
                starts = self.piece(starts, at + 1, end - self.base);
            }
        }
        starts
    }

    /// `starts`, with the contractions at `apostrophes`, each after a letter, as part of the word before them. A word
    /// has at most one: what follows it begins a new piece.
    #[inline]
    pub fn with_joined_contractions(
        &self,
        mut starts: u64,
        apostrophes: u64,
        contraction_end: impl Fn(usize) -> Option<usize>,
    ) -> u64 {
        let mut previous_end = 0;
        for at in bits(apostrophes) {
            let at = at as usize;
            if at == previous_end {
                continue;
            }
            if let Some(end) = contraction_end(self.base + at) {
                previous_end = end - self.base;
                starts = self.piece(starts, at, previous_end);
            }
        }
        starts
    }

    /// `starts` without any from `from` to `end`, which is one.
    #[inline]
    fn piece(&self, starts: u64, from: usize, end: usize) -> u64 {
        let below = |limit: usize| 1u64.checked_shl(limit as u32).map_or(u64::MAX, |bit| bit - 1);
        let cleared = starts & !(below(end) & !below(from));
        cleared | below(end + 1) & !below(end) & self.valid
    }
}

/// The indices of the set bits, lowest first.
#[inline]
pub(super) fn bits(mut mask: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let at = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (at < u64::BITS).then_some(at)
    })
}
