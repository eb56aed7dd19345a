//! Training against the definition of BPE, with so little memory that every phase is cut short.

use super::store::{ChunkBuilder, PieceStore};
use super::vocabulary::TieBreak;
use super::{PhaseNote, Settings, learn};
use crate::crew::Progress;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

type Pieces = BTreeMap<Vec<u8>, u64>;
type Merges = Vec<(Vec<u8>, Vec<u8>)>;

/// Recounts everything before every merge.
fn oracle(pieces: &Pieces, settings: &Settings) -> Merges {
    let mut words: Vec<(Vec<u32>, u64)> = pieces
        .iter()
        .map(|(piece, &count)| {
            (piece.iter().map(|&byte| u32::from(crate::alphabet::IDS[byte as usize])).collect(), count)
        })
        .collect();
    let mut tokens: Vec<Vec<u8>> = crate::alphabet::BYTES.iter().map(|&byte| vec![byte]).collect();
    let mut merges = Vec::new();
    while tokens.len() < settings.tokens {
        let mut counts: HashMap<(u32, u32), u64> = HashMap::new();
        for (symbols, count) in &words {
            for pair in symbols.windows(2) {
                if tokens[pair[0] as usize].len() + tokens[pair[1] as usize].len() <= settings.max_token_bytes
                {
                    *counts.entry((pair[0], pair[1])).or_default() += count;
                }
            }
        }
        let best = counts.into_iter().max_by(|(a, m), (b, n)| {
            m.cmp(n).then_with(|| match settings.tie_break {
                TieBreak::SmallestIds => b.cmp(a),
                TieBreak::GreatestBytes => {
                    let bytes = |pair: &(u32, u32)| (&tokens[pair.0 as usize], &tokens[pair.1 as usize]);
                    bytes(a).cmp(&bytes(b))
                }
            })
        });
        let Some(((left, right), count)) = best else {
            break;
        };
        if count < settings.min_frequency {
            break;
        }
        let (a, b) = (tokens[left as usize].clone(), tokens[right as usize].clone());
        let made = [a.clone(), b.clone()].concat();
        merges.push((a, b));
        let id = tokens.iter().position(|token| *token == made).unwrap_or_else(|| {
            tokens.push(made);
            tokens.len() - 1
        }) as u32;
        for (symbols, _) in &mut words {
            let mut at = 0;
            while at + 1 < symbols.len() {
                if (symbols[at], symbols[at + 1]) == (left, right) {
                    symbols[at] = id;
                    symbols.remove(at + 1);
                }
                at += 1;
            }
        }
    }
    merges
}

fn stored(pieces: &Pieces, folder: &std::path::Path, store_share: usize) -> PieceStore {
    let mut store = PieceStore::new(folder, store_share).unwrap();
    let mut builder = ChunkBuilder::default();
    for (n, (piece, &count)) in pieces.iter().enumerate() {
        builder.add(piece, count);
        if n % 7 == 6 {
            store.push(&mut builder).unwrap(); // many small chunks
        }
    }
    store.push(&mut builder).unwrap();
    store
}

fn learned(pieces: &Pieces, settings: &Settings, store_share: usize) -> (Merges, Vec<PhaseNote>) {
    let folder = tempfile::tempdir().unwrap();
    let mut store = stored(pieces, folder.path(), store_share);
    let (vocabulary, course) = learn(&mut store, settings, &Progress::default(), &mut |_| Ok(())).unwrap();
    let bytes = |id: u32| vocabulary.tokens()[id as usize].to_vec();
    (vocabulary.merges.iter().map(|&(left, right, _)| (bytes(left), bytes(right))).collect(), course)
}

fn pieces() -> impl Strategy<Value = Pieces> {
    prop::collection::btree_map("[ab]{1,12}|[abcd]{1,9}|[a-p ]{1,14}", 1u64..2000, 1..120)
        .prop_map(|map| map.into_iter().map(|(piece, count)| (piece.into_bytes(), count)).collect())
}

proptest! {
    #[test]
    fn learns_what_the_definition_learns(
        pieces in pieces(),
        tokens in 257usize..420,
        min_frequency in 0u64..40,
        max_token_bytes in prop::sample::select(vec![2, 3, 5, 1000]),
        bytes_rule in any::<bool>(),
        memory in prop::sample::select(vec![3000, 20_000, 1 << 20]),
        store_share in prop::sample::select(vec![0, 500, 1 << 20]),
        threads in 1usize..4,
    ) {
        let tie_break = if bytes_rule { TieBreak::GreatestBytes } else { TieBreak::SmallestIds };
        let settings = Settings { tokens, min_frequency, max_token_bytes, tie_break, threads, memory };
        // Even with a share that no segment fits into, the merges are right.
        let (found, _) = learned(&pieces, &settings, store_share);
        prop_assert_eq!(found, oracle(&pieces, &settings));
    }
}

/// Words of many letters, most of them rare: their segments outgrow a small share repeatedly.
#[test]
fn a_share_too_small_means_more_phases_and_the_same_merges() {
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let pieces: Pieces = (0..6000)
        .map(|n| {
            let length = 2 + random(14);
            let word = (0..length).map(|_| b'a' + random(26).min(random(26)) as u8).collect();
            (word, 1 + 100_000 / (n + 1))
        })
        .collect();
    let settings = |memory| Settings {
        tokens: 1500,
        min_frequency: 0,
        max_token_bytes: usize::MAX,
        tie_break: TieBreak::SmallestIds,
        threads: 2,
        memory,
    };
    let (roomy, few) = learned(&pieces, &settings(1 << 26), usize::MAX);
    let (tight, many) = learned(&pieces, &settings(60_000), 1000);
    assert_eq!(roomy.len(), 1244);
    assert_eq!(tight, roomy);
    assert!(many.iter().any(|phase| phase.threshold > phase.wanted), "{many:?}");
    assert!(many.len() > few.len());
    assert!(many.iter().all(|phase| phase.bytes <= 60_000), "{many:?}");
}

/// Pairs of nearly equal counts, far more of them than cells: a raised bound exceeds every real count, and the pairs
/// have to be counted.
#[test]
fn pairs_that_all_look_alike_are_counted() {
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let pieces: Pieces = (0..9000)
        .map(|_| {
            let length = 4 + random(6);
            let word: Vec<u8> = (0..length).map(|_| random(250) as u8).collect();
            (word, 1 + random(2))
        })
        .collect();
    for tie_break in [TieBreak::SmallestIds, TieBreak::GreatestBytes] {
        let settings = |memory| Settings {
            tokens: 290,
            min_frequency: 0,
            max_token_bytes: usize::MAX,
            tie_break,
            threads: 2,
            memory,
        };
        let (roomy, _) = learned(&pieces, &settings(1 << 26), usize::MAX);
        let (tight, course) = learned(&pieces, &settings(20_000), 1000);
        assert_eq!(roomy.len(), 34);
        assert_eq!(tight, roomy);
        assert!(course.iter().any(|phase| phase.merges == 0), "the sketch was fine: {course:?}");
    }
}

/// One pair in runs of every length: its segments do not fit, and it is merged without them.
#[test]
fn runs_that_do_not_fit_give_the_same_merges() {
    let pieces: Pieces = (2..600).map(|length| (vec![b'a'; length], 1)).collect();
    let settings = |memory| Settings {
        tokens: 270,
        min_frequency: 0,
        max_token_bytes: usize::MAX,
        tie_break: TieBreak::SmallestIds,
        threads: 2,
        memory,
    };
    let (tight, course) = learned(&pieces, &settings(20_000), usize::MAX);
    assert_eq!(tight, oracle(&pieces, &settings(0)));
    assert!(course.iter().any(|phase| phase.bytes == 0 && phase.merges == 1), "all fitted: {course:?}");
}
