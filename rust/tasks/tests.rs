//! The plan covers the input exactly, is the same every time, and is read from disk as it was written.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;
use crate::source::{Block, ReadOptions, Sources};

fn plan_of(files: &[FileSpec], documents: Documents, target: Option<u64>, dir: &Path) -> PlanSummary {
    let mut files = files.iter().cloned();
    plan(|| Ok(files.next()), &PlanOptions { documents, target_bytes: target, whole_documents: false }, dir)
        .unwrap()
}

fn segments(dir: &Path, tasks: u32) -> Vec<Vec<FileSpec>> {
    let all = (0..tasks).map(|index| {
        let task = Task::load(dir, index).unwrap();
        let mut files = task.files();
        std::iter::from_fn(|| files().unwrap()).collect()
    });
    let all = all.collect();
    assert!(Task::load(dir, tasks).is_err());
    all
}

fn listed() -> impl Strategy<Value = FileSpec> {
    let path = prop::collection::vec(1u8..=255, 1..40);
    let format = prop::sample::select(vec![Format::Text, Format::Jsonl]);
    let compression = prop::sample::select(vec![Compression::None, Compression::None, Compression::Gz]);
    let size = prop::option::weighted(0.95, prop_oneof![0u64..50, 0u64..5000]);
    (path, format, compression, size, any::<i64>()).prop_map(|(path, format, compression, size, modified)| {
        let path = OsString::from_vec([b"p", &path[..]].concat()).into();
        FileSpec { path, format, compression, size, modified: size.map(|_| modified), range: None }
    })
}

proptest! {
    // Each case syncs several files.
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn tasks_cover_the_input_exactly(
        files in prop::collection::vec(listed(), 0..60),
        target in 1u64..1000,
        splits in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let separator = if splits { "<end>" } else { "\n\n" };
        let documents = Documents::Separator(separator.into());
        let summary = plan_of(&files, documents.clone(), Some(target), dir.path());
        prop_assert_eq!(summary.files, files.len() as u64);
        prop_assert_eq!(summary.total_bytes, files.iter().filter_map(|file| file.size).sum::<u64>());
        let tasks = segments(dir.path(), summary.tasks);

        // Joining the parts gives the files again.
        let mut joined: Vec<FileSpec> = Vec::new();
        for segment in tasks.iter().flatten() {
            if let Some(Range::Bytes { start, end }) = segment.range {
                prop_assert!(source::can_split(&documents, segment.format, segment.compression));
                prop_assert!(end - start <= target + target / 2 && (end - start == target || Some(end) == segment.size));
                if start > 0 {
                    let last = joined.last_mut().unwrap();
                    prop_assert_eq!(&*last, &FileSpec { range: Some(Range::Bytes { start: 0, end: start }), ..segment.clone() });
                    last.range = Some(Range::Bytes { start: 0, end });
                    continue;
                }
            } else {
                let whole = weight(segment).is_none_or(|weight| weight <= target + target / 2);
                prop_assert!(whole || !source::can_split(&documents, segment.format, segment.compression));
            }
            joined.push(segment.clone());
        }
        for segment in &mut joined {
            if let Some(range) = segment.range.take() {
                prop_assert_eq!(range, Range::Bytes { start: 0, end: segment.size.unwrap() });
            }
        }
        prop_assert_eq!(joined, files.to_vec());

        let full = |segments: &[FileSpec]| {
            segments.iter().any(|segment| segment.size.is_none())
                || segments.iter().map(|segment| match segment.range {
                    Some(Range::Bytes { start, end }) => end - start,
                    _ => weight(segment).unwrap(),
                }).sum::<u64>() >= target
        };
        for (index, task) in tasks.iter().enumerate() {
            prop_assert!(!task.is_empty());
            prop_assert!(index + 1 == tasks.len() || full(task), "task {} is too small", index);
            prop_assert!(!full(&task[..task.len() - 1]), "task {} is too large", index);
        }

        let again = tempfile::tempdir().unwrap();
        prop_assert_eq!(plan_of(&files, documents, Some(target), again.path()), summary);
        prop_assert_eq!(segments(again.path(), summary.tasks), tasks);
        let mut names: Vec<_> = std::fs::read_dir(again.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        prop_assert_eq!(names, ["segments", "tasks"]);
    }

    #[test]
    fn damage_to_the_segments_is_noticed(
        files in prop::collection::vec(listed(), 1..10),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let summary = plan_of(&files, Documents::Line, Some(u64::MAX), dir.path());
        let tasks = segments(dir.path(), summary.tasks);
        let path = dir.path().join(SEGMENTS);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        std::fs::write(&path, bytes).unwrap();
        let valid = (0..summary.tasks).all(|index| {
            let mut files = Task::load(dir.path(), index).unwrap().files();
            tasks[index as usize].iter().all(|segment| files().is_ok_and(|read| read.as_ref() == Some(segment)))
        });
        prop_assert!(!valid);
    }
}

fn file(path: impl Into<PathBuf>, format: Format, size: u64, modified: i64) -> FileSpec {
    let compression = Compression::None;
    FileSpec {
        path: path.into(),
        format,
        compression,
        size: Some(size),
        modified: Some(modified),
        range: None,
    }
}

#[test]
fn different_inputs_have_different_fingerprints() {
    let dir = tempfile::tempdir().unwrap();
    let base = [file("a", Format::Text, 5, 1), file("bc", Format::Text, 5, 1)];
    let print = |files: &[FileSpec]| plan_of(files, Documents::Line, None, dir.path()).fingerprint;
    let mut prints =
        vec![print(&base), print(&base[..1]), print(&[]), print(&[base[1].clone(), base[0].clone()])];
    for change in [
        |file: &mut FileSpec| file.modified = Some(2),
        |file: &mut FileSpec| file.size = None,
        |file: &mut FileSpec| file.path = "c".into(),
        |file: &mut FileSpec| file.format = Format::Jsonl,
        |file: &mut FileSpec| file.compression = Compression::Zst,
    ] {
        let mut files = base.clone();
        change(&mut files[1]);
        prints.push(print(&files));
    }
    assert_eq!(print(&base), prints[0]);
    prints.sort_unstable();
    prints.dedup();
    assert_eq!(prints.len(), 9);
}

#[test]
fn tasks_grow_with_the_input() {
    assert_eq!(task_bytes(0), 16 << 20);
    assert_eq!(task_bytes(16 << 30), 16 << 20);
    assert_eq!(task_bytes((16 << 30) + 1024), 32 << 20);
    assert_eq!(task_bytes(100 << 30), 128 << 20);
    assert_eq!(task_bytes(8 << 40), 512 << 20);
    assert_eq!(task_bytes(100 << 40), 8 << 30);
    assert_eq!(task_bytes(u64::MAX), 1 << 50);

    let dir = tempfile::tempdir().unwrap();
    let compressed = |size| {
        let mut listed = file("a.gz", Format::Text, size, 0);
        listed.compression = Compression::Gz;
        listed
    };
    // 4 MiB compressed count as 16; an empty input is a plan without tasks.
    let files = [compressed(4 << 20), compressed(4 << 20), compressed(1)];
    assert_eq!(plan_of(&files, Documents::Line, None, dir.path()).tasks, 3);
    assert_eq!(plan_of(&[], Documents::Line, None, dir.path()).tasks, 0);
    assert!(Task::load(dir.path(), 0).is_err());
}

#[test]
fn tables_are_cut_by_row_groups() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("table.parquet");
    let rows: Vec<Option<Vec<u8>>> = (0..70).map(|row| Some(format!("row {row}").into_bytes())).collect();
    let bytes = source::tests::oracle::parquet_file(&rows);
    std::fs::write(&path, &bytes).unwrap();
    let size = bytes.len() as u64;
    let groups = source::row_group_bytes(&path).unwrap().unwrap();
    assert_eq!(groups.len(), 10);
    let plan_dir = dir.path().join("plan");
    for target in [1, groups[0] * 2, groups[0] * 5 / 2, size - 1, size] {
        let table = FileSpec { modified: None, ..file(&path, Format::Parquet, size, 0) };
        let files = [table, file("-", Format::Text, 1 << 40, 0)];
        let summary = plan_of(&files[..1], Documents::File, Some(target), &plan_dir);
        let tasks = segments(&plan_dir, summary.tasks);
        let mut next = 0;
        for segment in tasks.iter().flatten() {
            match segment.range {
                Some(Range::RowGroups { first, end }) => {
                    assert_eq!(first, next);
                    let bytes: u64 = groups[first..end].iter().sum();
                    assert!(end == 10 || (bytes >= target && bytes < target + groups[end - 1]));
                    next = end;
                }
                _ => next = 10,
            }
        }
        assert_eq!(next, 10);
        assert_eq!(tasks.iter().flatten().any(|segment| segment.range.is_none()), target >= size - 1);

        let mut texts = Vec::new();
        for index in 0..summary.tasks {
            let task = Task::load(&plan_dir, index).unwrap();
            let options = ReadOptions { text_field: "meta.text".into(), ..ReadOptions::default() };
            let sources = Sources::new(task.files(), 1, options).unwrap();
            let mut block = Block::new();
            while sources.next_block(0, &mut block).unwrap() {
                texts.extend(block.iter().map(|(_, text)| text.to_owned().into_bytes()));
            }
        }
        assert_eq!(texts, rows.iter().flatten().cloned().collect::<Vec<_>>());
        // Standard input is never cut.
        let summary = plan_of(&files[1..], Documents::Line, Some(target), &plan_dir);
        assert_eq!(segments(&plan_dir, summary.tasks), [[files[1].clone()]]);
    }
    // Not a table at all: reading it will report the error.
    std::fs::write(&path, vec![b'x'; 1000]).unwrap();
    let summary = plan_of(&[file(&path, Format::Parquet, 1000, 0)], Documents::File, Some(10), &plan_dir);
    assert_eq!(segments(&plan_dir, summary.tasks)[0][0].range, None);
}
