//! Reads back files that we wrote ourselves. Whatever is at their path by now, opening it never blocks, and no more is
//! read than a file of ours can have.

use crate::error::{Error, Result};
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Notes and plans; the largest has a few hundred bytes per file of a cache.
const LARGEST_NOTE: u64 = 16 << 20;

/// Opens a regular file; opening a pipe without a writer would block forever.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file: remove it")),
    }
}

/// Reads a note.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(LARGEST_NOTE + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > LARGEST_NOTE {
        true => Err(io::Error::other("it is larger than any file that ramlet writes: remove it")),
        false => Ok(bytes),
    }
}

/// The error for a file of ours with other content than was written.
pub fn damaged(path: &Path) -> Error {
    let folder = path.parent().unwrap_or(path).display();
    Error::Invalid(format!("{} is damaged: remove {folder} and run the same command again", path.display()))
}

/// Reads a note that is JSON.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = read(path).map_err(|error| Error::io(path, error))?;
    serde_json::from_slice(&text)
        .map_err(|error| Error::Invalid(format!("cannot read {} ({error})", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_can_be_ours_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("note");
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(read(&path).unwrap(), b"{}");
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(read(&path).is_err());
        for other in [Path::new("/dev/zero"), folder.path()] {
            assert!(open(other).is_err());
        }
        assert_eq!(open(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
