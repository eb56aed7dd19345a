//! Packs documents into sequences of one length, with as few cuts and as little padding as possible.
//!
//! A document longer than a sequence fills whole sequences first; its rest, like every shorter document, is a piece.
//! Pieces are collected in windows; within a window, from the longest to the shortest, each goes into the sequence
//! where it leaves the least space (best-fit decreasing). No piece is cut; what remains free is padding. A window has a
//! fixed number of ids, so that the result depends only on the documents, and memory is bounded. Sequences are ordered
//! by their first pieces.

use super::assemble::{Extent, Stream};
use super::layout::{IN_ROW, Parts, Piece, Rows};
use super::tokens::TaskTokens;
use super::{Job, Split};
use crate::crew::Progress;
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// Ids in a window.
const WINDOW: u64 = 4 << 20;
/// Pieces in a window: each takes about 100 bytes while it is placed, more than the ids of a short document.
const WINDOW_PIECES: usize = 64 << 10;
/// The same of a document with more pieces than that.
const MOST_PIECES: usize = 2 * WINDOW_PIECES;

#[derive(Default, Serialize, Deserialize)]
pub struct Packed {
    pub sequences: u64,
    pub padding: u64,
    pub pieces: u64,
    /// Documents that did not fit into one sequence.
    pub truncated_documents: u64,
}

/// Lays out the shards of packed documents: which sequence has which pieces follows from their lengths.
pub fn lay_out(
    job: &Job,
    tasks: &[TaskTokens],
    length: u64,
    rows: &mut Rows,
    progress: &Progress,
) -> Result<Packed> {
    let mut packed = Packed::default();
    for split in Split::ALL {
        rows.begin(split, job.plan.first_shard(split));
        let mut sequences = Sequences { job, length, rows, pieces: Vec::new(), tokens: 0 };
        let mut window = Vec::new();
        let mut gathered = 0;
        Stream::new(job, tasks, split).for_each(|document| {
            progress.check()?;
            progress.done.fetch_add(1, Relaxed);
            gathered += document.tokens.end - document.tokens.start;
            packed.truncated_documents += u64::from(document.tokens.end - document.tokens.start > length);
            for piece in divide(document, length) {
                // A window ends with a document, unless that alone has more pieces than fit in memory.
                if window.len() == MOST_PIECES {
                    sequences.add_window(&std::mem::take(&mut window), &mut packed)?;
                }
                window.push(piece);
            }
            if gathered >= WINDOW || window.len() >= WINDOW_PIECES {
                gathered = 0;
                sequences.add_window(&std::mem::take(&mut window), &mut packed)?;
            }
            Ok(())
        })?;
        sequences.add_window(&window, &mut packed)?;
        sequences.close()?;
    }
    Ok(packed)
}

fn divide(document: Extent, length: u64) -> impl Iterator<Item = Piece> {
    let Extent { task, from, tokens, .. } = document;
    let step = usize::try_from(length).unwrap_or(usize::MAX);
    tokens.clone().step_by(step).map(move |start| Piece {
        task,
        from,
        tokens: start..tokens.end.min(start.saturating_add(length)),
        padding: 0,
    })
}

/// Which pieces go into which sequence, in order.
fn best_fit(lengths: &[u64], length: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&piece| (std::cmp::Reverse(lengths[piece]), piece));
    let mut sequences: Vec<Vec<usize>> = Vec::new();
    let mut free: BTreeSet<(u64, usize)> = BTreeSet::new();
    for piece in order {
        let need = lengths[piece];
        let tightest = free.range((need, 0)..).next().copied();
        let (left, sequence) = match tightest {
            Some(found) => {
                free.remove(&found);
                found
            }
            None => {
                sequences.push(Vec::new());
                (length, sequences.len() - 1)
            }
        };
        sequences[sequence].push(piece);
        if left > need {
            free.insert((left - need, sequence));
        }
    }
    for sequence in &mut sequences {
        sequence.sort_unstable();
    }
    sequences.sort_unstable_by_key(|sequence| sequence[0]);
    sequences
}

/// The sequences of one split, and the shard that they are in.
struct Sequences<'a> {
    job: &'a Job,
    length: u64,
    rows: &'a mut Rows,
    /// Of the shard so far, without those that are written.
    pieces: Vec<Piece>,
    tokens: u64,
}

impl Sequences<'_> {
    fn add_window(&mut self, window: &[Piece], packed: &mut Packed) -> Result<()> {
        let lengths: Vec<u64> = window.iter().map(Piece::len).collect();
        for sequence in best_fit(&lengths, self.length) {
            let filled: u64 = sequence.iter().map(|&piece| lengths[piece]).sum();
            packed.sequences += 1;
            packed.padding += self.length - filled;
            packed.pieces += sequence.len() as u64;
            for &piece in &sequence {
                if self.pieces.len() == IN_ROW {
                    self.write()?;
                }
                self.pieces.push(window[piece].clone());
            }
            self.pieces.last_mut().expect("a sequence has a piece").padding = self.length - filled;
            self.tokens += self.length;
            if self.tokens + self.length > self.job.plan.tokens_per_shard {
                self.close()?;
            }
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        self.rows.add(&Parts::Pieces(std::mem::take(&mut self.pieces)))
    }

    fn close(&mut self) -> Result<()> {
        if !self.pieces.is_empty() {
            self.write()?;
        }
        self.rows.end_shard()?;
        self.tokens = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: checks every sequence for every piece.
    fn slow_best_fit(lengths: &[u64], length: u64) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by(|&a, &b| lengths[b].cmp(&lengths[a]).then(a.cmp(&b)));
        let mut sequences: Vec<(u64, Vec<usize>)> = Vec::new();
        for piece in order {
            let fitting = sequences.iter_mut().filter(|(free, _)| *free >= lengths[piece]);
            match fitting.min_by_key(|(free, _)| *free) {
                Some((free, pieces)) => {
                    *free -= lengths[piece];
                    pieces.push(piece);
                }
                None => sequences.push((length - lengths[piece], vec![piece])),
            }
        }
        let mut all: Vec<Vec<usize>> = sequences.into_iter().map(|(_, pieces)| pieces).collect();
        all.iter_mut().for_each(|pieces| pieces.sort_unstable());
        all.sort_by_key(|pieces| pieces[0]);
        all
    }

    proptest! {
        #[test]
        fn packs_as_defined(lengths in prop::collection::vec(1u64..=64, 0..200)) {
            let fast = best_fit(&lengths, 64);
            prop_assert_eq!(&fast, &slow_best_fit(&lengths, 64));
            let mut seen: Vec<usize> = fast.iter().flatten().copied().collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
            for sequence in &fast {
                prop_assert!(sequence.iter().map(|&piece| lengths[piece]).sum::<u64>() <= 64);
            }
        }

        #[test]
        fn divides_without_loss(start in 0u64..1000, tokens in 1u64..500, length in 1u64..100) {
            let tokens_of = start..start + tokens;
            let extent =
                Extent { task: 0, from: Split::Train, documents: 0..1, tokens: tokens_of, dropped_before: 0 };
            let pieces: Vec<Piece> = divide(extent, length).collect();
            prop_assert_eq!(pieces[0].tokens.start, start);
            prop_assert_eq!(pieces.last().unwrap().tokens.end, start + tokens);
            for pair in pieces.windows(2) {
                prop_assert_eq!(pair[0].tokens.end, pair[1].tokens.start);
                prop_assert_eq!(pair[0].len(), length);
            }
        }
    }
}
