//! Packs documents into sequences of one length, with as few cuts and as little padding as possible.
//!
//! A document longer than a sequence fills whole sequences first; its rest, like every shorter document, is a piece.
//! Pieces are collected in windows; within a window, from the longest to the shortest, each goes into the sequence
//! where it leaves the least space (best-fit decreasing). No piece is cut; what remains free is padding. A window has a
//! fixed number of ids, so that the result depends only on the documents, and memory is bounded. Sequences are ordered
//! by their first pieces.

use super::assemble::{Extent, Stream};
use super::shard::{ShardRecord, ShardWriter};
use super::tokens::{Ids, load_tasks};
use super::{Job, Split};
use crate::atomic::create_folder;
use crate::crew::Progress;
use crate::error::Result;
use serde::Serialize;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Ids in a window.
const WINDOW: u64 = 4 << 20;
/// Pieces in a window: each takes about 100 bytes while it is placed, more than the ids of a short document.
const WINDOW_PIECES: usize = 64 << 10;

#[derive(Default, Serialize)]
pub struct Packed {
    pub shards: Vec<ShardRecord>,
    pub sequences: u64,
    pub padding: u64,
    pub pieces: u64,
    /// Documents that did not fit into one sequence.
    pub truncated_documents: u64,
}

/// A range of a document's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    task: u32,
    from: Split,
    tokens: Range<u64>,
}

impl Piece {
    fn len(&self) -> u64 {
        self.tokens.end - self.tokens.start
    }
}

pub fn assemble_packed(job: &Job, length: u64, progress: &Progress) -> Result<Packed> {
    let tasks = load_tasks(job)?;
    let total: u64 = tasks.iter().map(|task| task.train.tokens + task.val.tokens).sum();
    progress.total.store(total, Relaxed);
    let mut packed = Packed::default();
    for split in Split::ALL {
        create_folder(&job.out.join(split.name()))?;
        let mut output = Output { job, split, length, writer: None, number: 0, ids: None, progress };
        let mut window = Vec::new();
        let mut gathered = 0;
        Stream::new(job, &tasks, split).for_each(|document| {
            progress.check()?;
            let pieces = divide(document, length);
            packed.truncated_documents += u64::from(pieces.len() > 1);
            gathered += pieces.iter().map(Piece::len).sum::<u64>();
            window.extend(pieces);
            if gathered >= WINDOW || window.len() >= WINDOW_PIECES {
                gathered = 0;
                output.write(&std::mem::take(&mut window), &mut packed)?;
            }
            Ok(())
        })?;
        output.write(&window, &mut packed)?;
        output.close(&mut packed)?;
    }
    Ok(packed)
}

fn divide(document: Extent, length: u64) -> Vec<Piece> {
    let Extent { task, from, tokens, .. } = document;
    let step = usize::try_from(length).unwrap_or(usize::MAX);
    tokens
        .clone()
        .step_by(step)
        .map(|start| Piece { task, from, tokens: start..tokens.end.min(start.saturating_add(length)) })
        .collect()
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

struct Output<'a> {
    job: &'a Job,
    split: Split,
    length: u64,
    writer: Option<ShardWriter>,
    number: u64,
    /// The last task and split whose ids were read.
    ids: Option<(u32, Split, Ids)>,
    progress: &'a Progress,
}

impl Output<'_> {
    fn write(&mut self, window: &[Piece], packed: &mut Packed) -> Result<()> {
        let lengths: Vec<u64> = window.iter().map(Piece::len).collect();
        for sequence in best_fit(&lengths, self.length) {
            self.progress.check()?;
            self.sequence(sequence.iter().map(|&piece| &window[piece]), packed)?;
        }
        Ok(())
    }

    fn sequence<'p>(&mut self, pieces: impl Iterator<Item = &'p Piece>, packed: &mut Packed) -> Result<()> {
        let job = self.job;
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => ShardWriter::create(job, self.split, job.plan.first_shard(self.split) + self.number)?,
        };
        let begin = writer.tokens();
        for piece in pieces {
            if self.ids.as_ref().is_none_or(|(task, from, _)| (*task, *from) != (piece.task, piece.from)) {
                self.ids = Some((piece.task, piece.from, Ids::open(job, piece.task, piece.from)?));
            }
            let (_, _, ids) = self.ids.as_ref().expect("opened above");
            ids.copy(piece.tokens.clone(), |bytes| writer.push(bytes))?;
            writer.end_document_at(writer.tokens())?;
            packed.pieces += 1;
            self.progress.done.fetch_add(piece.len(), Relaxed);
        }
        let padding = begin + self.length - writer.tokens();
        let pad = job.plan.pad_id().to_le_bytes();
        for _ in 0..padding {
            writer.push(&pad[..job.plan.width()])?;
        }
        packed.padding += padding;
        packed.sequences += 1;
        let full = writer.tokens() + self.length > job.plan.tokens_per_shard;
        self.writer = Some(writer);
        if full { self.close(packed) } else { Ok(()) }
    }

    fn close(&mut self, packed: &mut Packed) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            packed.shards.push(writer.commit()?);
            self.number += 1;
        }
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
            let pieces = divide(extent, length);
            prop_assert_eq!(pieces[0].tokens.start, start);
            prop_assert_eq!(pieces.last().unwrap().tokens.end, start + tokens);
            for pair in pieces.windows(2) {
                prop_assert_eq!(pair[0].tokens.end, pair[1].tokens.start);
                prop_assert_eq!(pair[0].len(), length);
            }
        }
    }
}
