//! Logits -> the next token: repetition penalty, temperature, top-k, top-p, then sampling.
//!
//! The exponentials are those of the kernels, and all sums are in a fixed order: the same choice on every machine.

use crate::kernels::{Kernel, LANES, Rows, Vector, exp, load, run, store};
use std::ops::Range;

#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// 0 means the likeliest token.
    pub temperature: f64,
    pub top_k: Option<usize>,
    pub top_p: Option<f64>,
    pub repetition_penalty: f32,
}

/// A logit is NaN.
#[derive(Debug, PartialEq, Eq)]
pub struct NotANumber;

/// Chooses the tokens of several samples.
pub struct Chooser {
    sampling: Sampling,
    vocab: usize,
    /// By id: whether it may be chosen; empty if all may.
    known: Vec<bool>,
    /// By sample and id: whether it occurred; empty without a penalty.
    seen: Vec<bool>,
    logits: Vec<f32>,
    shares: Vec<f32>,
    /// Ids, the likeliest first as far as needed; empty without top-p.
    order: Vec<u32>,
}

/// The likeliest ids are sorted in parts, each four times as large as the one before, until there are enough.
const FIRST_SORTED: usize = 64;

impl Chooser {
    /// All memory that it takes.
    pub fn bytes(sampling: &Sampling, vocab: usize, samples: usize) -> usize {
        let seen = if sampling.repetition_penalty == 1.0 { 0 } else { samples };
        let order = if sampling.top_p.is_some() { size_of::<u32>() } else { 0 };
        vocab * (1 + seen + 2 * size_of::<f32>() + order)
    }

    /// `known` has a flag for every id, or is empty.
    pub fn new(sampling: Sampling, vocab: usize, samples: usize, known: Vec<bool>) -> Chooser {
        assert!(known.is_empty() || known.len() == vocab);
        let seen = if sampling.repetition_penalty == 1.0 { 0 } else { samples * vocab };
        Chooser {
            sampling,
            vocab,
            known,
            seen: vec![false; seen],
            logits: vec![0.0; vocab],
            shares: vec![0.0; vocab],
            order: Vec::with_capacity(if sampling.top_p.is_some() { vocab } else { 0 }),
        }
    }

    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The id occurred in this sample.
    pub fn see(&mut self, sample: usize, id: usize) {
        if !self.seen.is_empty() {
            assert!(id < self.vocab);
            self.seen[sample * self.vocab + id] = true;
        }
    }

    /// The next id of a sample, for a random number in [0, 1).
    pub fn choose(&mut self, sample: usize, logits: &[f32], draw: f64) -> Result<usize, NotANumber> {
        let id = if self.sampling.temperature == 0.0 {
            let most = self.adjust(sample, logits)?;
            self.logits.iter().position(|&logit| logit == most).unwrap_or(0)
        } else {
            draw_from(self.shares(sample, logits)?, draw)
        };
        self.see(sample, id);
        Ok(id)
    }

    /// The probability of every id, up to a common factor.
    pub fn shares(&mut self, sample: usize, logits: &[f32]) -> Result<&[f32], NotANumber> {
        let most = self.adjust(sample, logits)?;
        // First the distance to the greatest, so that even the smallest temperature causes no infinities.
        for logit in &mut self.logits {
            *logit = if *logit == most { 0.0 } else { *logit - most };
        }
        let least = self.least_kept();
        for (share, &logit) in self.shares.iter_mut().zip(&self.logits) {
            let kept = logit >= least;
            *share =
                if kept { (f64::from(logit) / self.sampling.temperature) as f32 } else { f32::NEG_INFINITY };
        }
        let kernel = Exponentials { rows: Rows::new(&mut self.shares, WIDTH) };
        run(&kernel, kernel.rows.len(), kernel.rows.len(), 1);
        if let Some(top_p) = self.sampling.top_p.filter(|&top_p| top_p < 1.0) {
            self.keep_top(top_p);
        }
        Ok(&self.shares)
    }

    /// Copies the logits, those of unknown ids as -infinity and with the penalty; returns the greatest.
    fn adjust(&mut self, sample: usize, logits: &[f32]) -> Result<f32, NotANumber> {
        assert_eq!(logits.len(), self.vocab);
        if logits.iter().any(|logit| logit.is_nan()) {
            return Err(NotANumber);
        }
        self.logits.copy_from_slice(logits);
        for (logit, known) in self.logits.iter_mut().zip(&self.known) {
            if !known {
                *logit = f32::NEG_INFINITY;
            }
        }
        if !self.seen.is_empty() {
            let penalty = self.sampling.repetition_penalty;
            let seen = &self.seen[sample * self.vocab..][..self.vocab];
            for (logit, _) in self.logits.iter_mut().zip(seen).filter(|(_, seen)| **seen) {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        Ok(self.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max))
    }

    /// The smallest logit among the k greatest; all that are equal to it are kept too.
    fn least_kept(&mut self) -> f32 {
        match self.sampling.top_k {
            Some(top_k) if top_k < self.vocab => {
                self.shares.copy_from_slice(&self.logits);
                let number = top_k.max(1) - 1;
                *self.shares.select_nth_unstable_by(number, |a, b| b.total_cmp(a)).1
            }
            _ => f32::NEG_INFINITY,
        }
    }

    /// Keeps the likeliest ids until their probabilities add up to `top_p`; of equal ones, lower ids first.
    fn keep_top(&mut self, top_p: f64) {
        let shares = &mut self.shares;
        let wanted = top_p * shares.iter().map(|&share| f64::from(share)).sum::<f64>();
        self.order.clear();
        self.order.extend((0..self.vocab as u32).filter(|&id| shares[id as usize] > 0.0));
        let (mut start, mut size, mut before) = (0, FIRST_SORTED, 0.0);
        while start < self.order.len() {
            let rest = &mut self.order[start..];
            let count = size.min(rest.len());
            let likelier =
                |a: &u32, b: &u32| shares[*b as usize].total_cmp(&shares[*a as usize]).then(a.cmp(b));
            if count < rest.len() {
                rest.select_nth_unstable_by(count, likelier);
            }
            rest[..count].sort_unstable_by(likelier);
            for at in 0..count {
                if before >= wanted {
                    for &id in &rest[at..] {
                        shares[id as usize] = 0.0;
                    }
                    return;
                }
                before += f64::from(shares[rest[at] as usize]);
            }
            start += count;
            size *= 4;
        }
    }
}

/// The id at this part of the sum of all shares.
fn draw_from(shares: &[f32], draw: f64) -> usize {
    let wanted = draw * shares.iter().map(|&share| f64::from(share)).sum::<f64>();
    let (mut sum, mut last) = (0.0, 0);
    for (id, &share) in shares.iter().enumerate() {
        sum += f64::from(share);
        if sum > wanted {
            return id;
        }
        if share > 0.0 {
            last = id;
        }
    }
    last
}

const WIDTH: usize = 4 << 10;

struct Exponentials<'a> {
    rows: Rows<'a, f32>,
}

impl Kernel for Exponentials<'_> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: each row is in one range only.
            let numbers = unsafe { self.rows.row(row) };
            let mut at = 0;
            while at < numbers.len() {
                store(exp(load::<V, f32>(numbers, at)), numbers, at);
                at += LANES;
            }
        }
    }
}
