//! Everything against one simple oracle: a set, and the units in order.

use super::set::{Added, Distinct, Marks};
use super::*;
use crate::crew::Progress;
use crate::error::{Error, Result};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh3::xxh3_128;

const SETTINGS: [u8; 16] = *b"cleaning setting";

/// A run in a folder of its own: record files, then all partitions settled.
struct Run {
    folder: tempfile::TempDir,
    plan: SettlePlan,
    units: Vec<u64>,
}

impl Run {
    fn scan(tasks: &[Vec<u128>], partitions: u32, buffer: usize, memory: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (mut records, mut units) = (Vec::new(), Vec::new());
        for (task, hashes) in tasks.iter().enumerate() {
            let path = folder.path().join(format!("{task:04}.records"));
            let mut writer = RecordWriter::create(&path, partitions, buffer).unwrap();
            hashes.iter().for_each(|hash| writer.push(*hash).unwrap());
            units.push(writer.finish().unwrap());
            records.push(path);
        }
        let out = folder.path().to_owned();
        let plan = SettlePlan { partitions, records, caches: Vec::new(), keep_fresh: true, out, memory };
        Run { folder, plan, units }
    }

    /// Partitions from the last to the first: their order must not matter.
    fn settle(&self) -> Result<SettleSummary> {
        let progress = Progress::default();
        let mut sum = SettleSummary::default();
        for partition in (0..self.plan.partitions).rev() {
            let summary = settle(partition, &self.plan, &progress)?;
            sum.records += summary.records;
            sum.dropped += summary.dropped;
            sum.passes += summary.passes;
        }
        assert_eq!(progress.done.load(Relaxed), sum.records);
        assert_eq!(sum.records, self.units.iter().sum::<u64>());
        Ok(sum)
    }

    fn drop_files(&self) -> Vec<PathBuf> {
        (0..self.plan.partitions).map(|partition| drop_file(&self.plan.out, partition)).collect()
    }

    fn drops(&self) -> Result<Vec<Vec<bool>>> {
        let files = self.drop_files();
        let load = |(task, units): (usize, &u64)| {
            let mut drops = Drops::load(task as u32, *units, files.clone())?;
            let dropped: Vec<bool> = (0..*units).map(|index| drops.contains(index)).collect::<Result<_>>()?;
            let mut by_window = Drops::with_window(task as u32, *units, files.clone(), units / 3 + 1)?;
            for (index, &dropped) in dropped.iter().enumerate().step_by(3) {
                assert_eq!(by_window.contains(index as u64)?, dropped);
            }
            assert!(!drops.contains(*units)? && !drops.contains(u64::MAX)?);
            Ok(dropped)
        };
        self.units.iter().enumerate().map(load).collect()
    }

    fn commit(&self, dir: &Path, id: &str) -> Result<u64> {
        let fresh: Vec<PathBuf> = (0..self.plan.partitions).map(|n| fresh_file(&self.plan.out, n)).collect();
        commit_cache(dir, id, Unit::Line, SETTINGS, &fresh, &Progress::default())
    }
}

/// What to drop; the new hashes are added to `seen`.
fn oracle(tasks: &[Vec<u128>], seen: &mut BTreeSet<u128>) -> Vec<Vec<bool>> {
    let mut first: BTreeMap<u128, (usize, usize)> = BTreeMap::new();
    for (task, hashes) in tasks.iter().enumerate() {
        for (index, hash) in hashes.iter().enumerate() {
            first.entry(*hash).or_insert((task, index));
        }
    }
    let drop = |place, hash| seen.contains(hash) || first[hash] != place;
    let dropped = (tasks.iter().enumerate())
        .map(|(task, hashes)| hashes.iter().enumerate().map(|(n, hash)| drop((task, n), hash)).collect())
        .collect();
    seen.extend(first.keys());
    dropped
}

/// The file's hashes, read in the simplest way.
fn cached(path: &Path) -> Vec<u128> {
    let bytes = std::fs::read(path).unwrap();
    bytes[40..bytes.len() - 8]
        .chunks_exact(16)
        .map(|hash| u128::from_le_bytes(hash.try_into().unwrap()))
        .collect()
}

/// What a run that is planned now compares with.
fn listed(folder: &Path) -> Listing {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "hashes"));
    files.map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())).collect()
}

fn hash(n: u64) -> u128 {
    xxh3_128(&n.to_le_bytes())
}

/// Uniform hashes of a few texts, as usual; and some that are unlikely: 0, the extremes, all close together.
fn hashes() -> impl Strategy<Value = u128> {
    prop_oneof![
        8 => (0u64..1500).prop_map(hash),
        2 => (0u128..40).prop_map(|n| n),
        1 => (0u128..40).prop_map(|n| u128::MAX - n),
        1 => (0u64..300).prop_map(|n| hash(n) >> 70 | 5 << 120),
        1 => Just(0),
    ]
}

fn runs() -> impl Strategy<Value = Vec<Vec<Vec<u128>>>> {
    let tasks = prop::collection::vec(prop::collection::vec(hashes(), 0..1200), 1..4);
    prop::collection::vec(tasks, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Runs one after the other share a cache; each has its own partitions, buffers and memory.
    #[test]
    fn drops_what_the_oracle_drops(
        runs in runs(),
        bits in prop::collection::vec(prop_oneof![5 => 0u32..4, 1 => 4u32..7], 3),
        buffers in prop::collection::vec(prop_oneof![1usize..4000, Just(1 << 20)], 3),
        memory in prop_oneof![Just(0usize), Just(300_000), Just(1 << 24)],
        with_cache: bool,
    ) {
        let cache = tempfile::tempdir().unwrap();
        let mut seen = BTreeSet::new();
        for (n, tasks) in runs.iter().enumerate() {
            let mut run = Run::scan(tasks, 1 << bits[n], buffers[n], memory);
            let before = seen.clone();
            if with_cache {
                run.plan.caches = open_caches(cache.path(), &listed(cache.path()), Unit::Line, SETTINGS).unwrap();
                prop_assert_eq!(run.plan.caches.len(), n);
            } else {
                seen.clear();
            }
            let expected = oracle(tasks, &mut seen);
            let summary = run.settle().unwrap();
            let dropped = expected.iter().flatten().filter(|dropped| **dropped).count() as u64;
            prop_assert_eq!(summary.dropped, dropped);
            prop_assert_eq!(run.drops().unwrap(), expected);
            if with_cache {
                let count = run.commit(cache.path(), &n.to_string()).unwrap();
                let fresh: Vec<u128> = seen.difference(&before).copied().collect();
                prop_assert_eq!(count, fresh.len() as u64);
                prop_assert_eq!(cached(&cache.path().join(format!("{n}.hashes"))), fresh);
            }
        }
    }

    #[test]
    fn the_set_returns_what_was_added(
        hashes in prop::collection::vec(hashes(), 0..2000),
        slots in 0usize..3000,
        marked in prop::collection::vec(0usize..2000, 0..50),
    ) {
        let mut set = Distinct::new(slots);
        for _ in 0..2 {
            set.begin(0);
            let mut oracle = BTreeSet::new();
            for &hash in &hashes {
                match set.add(hash) {
                    Added::New => prop_assert!(oracle.insert(hash)),
                    Added::Seen => prop_assert!(oracle.contains(&hash)),
                    Added::Full => prop_assert!(!oracle.contains(&hash) && oracle.len() >= set.capacity() / 4 * 3),
                }
            }
            let mut marks = Marks::new(&set);
            for hash in marked.iter().filter_map(|n| hashes.get(*n)) {
                prop_assert_eq!(set.slot(*hash).is_some(), oracle.contains(hash) );
                if let Some(slot) = set.slot(*hash) {
                    marks.set(slot);
                }
            }
            marked.iter().filter_map(|n| hashes.get(*n)).for_each(|hash| _ = oracle.remove(hash));
            prop_assert_eq!(set.take_sorted(&marks), oracle.into_iter().collect::<Vec<_>>());
        }
    }
}

#[test]
fn less_memory_only_costs_passes() {
    let tasks: Vec<Vec<u128>> =
        (0..3).map(|task| (0..20_000u64).map(|n| hash(n * 7 % 9000 + task * 4000)).collect()).collect();
    let expected = oracle(&tasks, &mut BTreeSet::new());
    let mut fresh = Vec::new();
    for (memory, passes) in [(1 << 22, 1..2), (300_000, 9..25), (0, 65..400)] {
        let run = Run::scan(&tasks, 1, 10_000, memory);
        let summary = run.settle().unwrap();
        assert!(passes.contains(&summary.passes), "{} passes with {memory}", summary.passes);
        assert_eq!(run.drops().unwrap(), expected);
        run.commit(run.folder.path(), "me").unwrap();
        fresh.push(std::fs::read(run.folder.path().join("me.hashes")).unwrap());
    }
    assert!(fresh.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn one_hash_a_million_times_is_one_pass() {
    for same in [0, 1, u128::MAX, hash(1)] {
        let tasks = vec![vec![same; 300_000], vec![], vec![same; 7]];
        let run = Run::scan(&tasks, 64, 1 << 20, 0);
        assert_eq!(run.settle().unwrap(), SettleSummary { records: 300_007, dropped: 300_006, passes: 64 });
        assert_eq!(run.drops().unwrap(), oracle(&tasks, &mut BTreeSet::new()));
    }
}

#[test]
fn hashes_that_differ_in_their_last_bits_only_still_fit() {
    let tasks = vec![(0..3000).rev().collect(), (0..3000).map(|n| u128::MAX - n).collect()];
    let run = Run::scan(&tasks, 8, 1 << 20, 0);
    assert_eq!(run.settle().unwrap().dropped, 0);
    assert_eq!(run.commit(run.folder.path(), "me").unwrap(), 6000);
}

#[test]
fn an_empty_input_is_fine() {
    let run = Run::scan(&[], 4, 1000, LEAST_MEMORY);
    assert_eq!(run.settle().unwrap().records, 0);
    assert_eq!(run.commit(&run.folder.path().join("new/folder"), "me").unwrap(), 0);
    let missing = Path::new("no/such/folder");
    assert!(open_caches(missing, &Listing::new(), Unit::Line, SETTINGS).unwrap().is_empty());
}

/// Every byte flipped (a sample, for long files), every length truncated, one byte appended.
fn damages(whole: &[u8]) -> Vec<Vec<u8>> {
    let step = whole.len() / 120 + 1;
    let flipped =
        (0..whole.len()).step_by(step).chain(whole.len().saturating_sub(64)..whole.len()).map(|at| {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 1 << (at % 8);
            bytes
        });
    let cut = (0..whole.len()).step_by(step).chain([whole.len() - 1]).map(|length| whole[..length].to_vec());
    flipped.chain(cut).chain([[whole, b"x"].concat()]).collect()
}

/// `read` must fail and name the file.
fn assert_noticed<T: PartialEq + std::fmt::Debug>(path: &Path, read: impl Fn() -> Result<T>) {
    let whole = std::fs::read(path).unwrap();
    read().unwrap();
    for bytes in damages(&whole) {
        std::fs::write(path, bytes).unwrap();
        let error = read().expect_err("damage must not pass").to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
    }
    std::fs::write(path, whole).unwrap();
    read().unwrap();
}

#[test]
fn damage_is_noticed() {
    let tasks = vec![(0..300).map(|n| hash(n % 100)).collect(), (0..100).map(|n| hash(n + 50)).collect()];
    let mut run = Run::scan(&tasks, 2, 5000, 0);
    run.settle().unwrap();
    run.commit(run.folder.path(), "me").unwrap();
    assert_noticed(&run.plan.records[1], || run.settle());
    assert_noticed(&drop_file(&run.plan.out, 1), || run.drops());
    assert_noticed(&fresh_file(&run.plan.out, 0), || run.commit(run.folder.path(), "me"));
    let open = || {
        let files = open_caches(run.folder.path(), &listed(run.folder.path()), Unit::Line, SETTINGS)?;
        Ok(files.iter().map(|file| file.count).sum::<u64>())
    };
    assert_noticed(&run.folder.path().join("me.hashes"), open);
    run.plan.caches =
        open_caches(run.folder.path(), &listed(run.folder.path()), Unit::Line, SETTINGS).unwrap();
    assert_noticed(&run.plan.records[0], || run.settle());
}

#[test]
fn caches_of_other_kinds_are_refused_with_the_reason() {
    let run = Run::scan(&[vec![hash(1)]], 1, 1000, LEAST_MEMORY);
    run.settle().unwrap();
    run.commit(run.folder.path(), "me").unwrap();
    let listing = listed(run.folder.path());
    let open = |unit, settings| open_caches(run.folder.path(), &listing, unit, settings);
    assert_eq!(open(Unit::Line, SETTINGS).unwrap().len(), 1);
    let unit = open(Unit::Document, SETTINGS).unwrap_err().to_string();
    assert!(unit.contains("has hashes of lines, but this run compares documents"), "{unit}");
    let settings = open(Unit::Line, [0; 16]).unwrap_err().to_string();
    assert!(settings.contains("different cleaning settings"), "{settings}");
}

#[test]
fn only_what_was_listed_is_compared() {
    let run = Run::scan(&[vec![hash(1)]], 1, 1000, LEAST_MEMORY);
    run.settle().unwrap();
    run.commit(run.folder.path(), "me").unwrap();
    let listing = listed(run.folder.path());
    let open = || open_caches(run.folder.path(), &listing, Unit::Line, SETTINGS);
    run.commit(run.folder.path(), "another").unwrap();
    assert_eq!(open().unwrap().len(), 1);
    let path = run.folder.path().join("me.hashes");
    for change in [
        |path: &Path| std::fs::write(path, b"longer").unwrap(),
        |path: &Path| std::fs::remove_file(path).unwrap(),
    ] {
        change(&path);
        let error = open().unwrap_err().to_string();
        assert!(error.contains("me.hashes of the dedup cache was removed or changed"), "{error}");
    }
}

#[test]
fn files_of_another_plan_are_refused() {
    let mut run = Run::scan(&[vec![hash(1)]], 2, 1000, LEAST_MEMORY);
    run.settle().unwrap();
    assert!(matches!(Drops::load(1, 1, run.drop_files()), Err(Error::Invalid(_))));
    run.plan.partitions = 4;
    assert!(matches!(settle(0, &run.plan, &Progress::default()), Err(Error::Invalid(_))));
}

#[test]
fn cancelling_leaves_no_result() {
    let run = Run::scan(&[vec![hash(1); 10]], 1, 1000, LEAST_MEMORY);
    let progress = Progress::default();
    progress.cancel();
    assert!(matches!(settle(0, &run.plan, &progress), Err(Error::Cancelled)));
    assert!(!drop_file(&run.plan.out, 0).exists());
}

#[test]
fn partitions_depend_on_the_size_alone() {
    assert_eq!(partitions(0, Unit::Line), 1);
    assert_eq!(partitions(40 << 20, Unit::Line), 1);
    assert_eq!(partitions(3_200_000_000, Unit::Line), 64);
    assert_eq!(partitions(3_200_000_000, Unit::Document), 2);
    assert_eq!(partitions(u64::MAX, Unit::Line), 4096);
    assert!((0..64).all(|n| partitions(1 << n, Unit::Document).is_power_of_two()));
}
