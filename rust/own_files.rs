//! Files that we wrote ourselves, read back: whatever lies at their path by now, it is opened without waiting for
//! anyone, and no more of it is read than one of ours has.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Notes and plans; the longest has a few hundred bytes for each file of a cache.
const LARGEST_NOTE: u64 = 16 << 20;

/// Opens a regular file; a pipe without a writer would keep us waiting for ever.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no ordinary file: remove it")),
    }
}

/// All of a note.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(LARGEST_NOTE + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > LARGEST_NOTE {
        true => Err(io::Error::other("it is larger than any that we write: remove it")),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_ours_is_read() {
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
