//! Errors of the native core. `Display` is one sentence: the cause and how to fix it. `python/mod.rs` turns each kind
//! into an exception of `ramlet.errors`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub enum Error {
    /// A file could not be opened, read or written.
    Io { path: PathBuf, source: io::Error },
    /// An input changed after the run was planned. `what` completes "FILE ...".
    Changed { path: PathBuf, what: String },
    /// An input's content is damaged. `what` completes "FILE:LINE ...". `line` counts from 1.
    Broken { path: PathBuf, line: Option<u64>, what: String },
    /// A record lacks the text field, or a table lacks the text column. `found` lists the fields it has, if known.
    MissingField { path: PathBuf, line: Option<u64>, field: String, found: Vec<String> },
    /// The file is text in another encoding.
    NotUtf8 { path: PathBuf, encoding: &'static str },
    /// Decompressing the file takes a larger window than the `have` bytes reserved for it.
    Window { path: PathBuf, have: u64 },
    /// No disk space left for temporary files.
    DiskFull { path: PathBuf, source: io::Error },
    /// The memory budget is too small.
    Budget { need: u64, have: u64, what: String },
    /// The user asked to stop.
    Cancelled,
    /// An invalid setting or argument; the text is the whole sentence.
    Invalid(String),
    /// A dataset that is damaged or does not match the request; the text is the whole sentence.
    Dataset(String),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Marks a setting in a sentence, as `ramlet.errors.option` does: Python spells it as a flag, a YAML key or an
/// argument.
pub fn option(name: &str) -> String {
    format!("\u{2}{name}\u{3}")
}

/// The same, with a value to set it to.
pub fn option_to(name: &str, value: &str) -> String {
    format!("\u{2}{name}\u{1f}{value}\u{3}")
}

impl Error {
    pub fn io(path: &Path, source: io::Error) -> Error {
        Error::Io { path: path.to_owned(), source }
    }

    /// The sentence without the advice.
    pub fn cause(&self) -> String {
        match self {
            Error::Broken { path, line, what } => format!("{} {what}", Place(path, *line)),
            Error::MissingField { path, line, field, found } => {
                let fields =
                    if found.is_empty() { String::new() } else { format!(" (it has {})", found.join(", ")) };
                format!("{} has no field {field:?}{fields}", Place(path, *line))
            }
            other => other.to_string(),
        }
    }

    /// For files that we write: a full disk is a kind of its own, because it is fixed differently.
    pub fn write(path: &Path, source: io::Error) -> Error {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match source.kind() {
            StorageFull | QuotaExceeded => Error::DiskFull { path: path.to_owned(), source },
            _ => Error::io(path, source),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { path, source } => {
                write!(f, "{}: {}", Place(path, None), Reason(source))
            }
            Error::Changed { path, what } => write!(
                f,
                "{} {what}: run the same command again, and do not change the inputs while they are being read",
                Place(path, None)
            ),
            Error::Broken { .. } => {
                write!(f, "{}: repair it, or pass {} to skip it", self.cause(), option_to("on_error", "skip"))
            }
            Error::MissingField { line, .. } => {
                write!(
                    f,
                    "{}: name the field that has the text with {}",
                    self.cause(),
                    option("text_field")
                )?;
                if line.is_some() {
                    write!(f, ", or pass {}", option_to("on_error", "skip"))?;
                }
                Ok(())
            }
            Error::NotUtf8 { path, encoding } => write!(
                f,
                "{} looks like {encoding}, not UTF-8: convert it first (iconv -f {encoding} -t UTF-8)",
                Place(path, None)
            ),
            Error::Window { path, have } => write!(
                f,
                "{} was compressed with a window larger than the {} reserved for decompression: raise {}, or compress it again with a smaller window",
                Place(path, None),
                Bytes(*have),
                option("memory")
            ),
            Error::DiskFull { path, source } => write!(
                f,
                "no disk space left for temporary files at {} ({}): free some space or choose another folder, then run the same command again",
                path.display(),
                Reason(source)
            ),
            Error::Budget { need, have, what } => {
                write!(f, "needs at least {}: {what}, but the budget is {}", Bytes(*need), Bytes(*have))
            }
            Error::Cancelled => f.write_str("interrupted"),
            Error::Invalid(sentence) | Error::Dataset(sentence) => f.write_str(sentence),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } | Error::DiskFull { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// `corpus/a.jsonl:17`, or `standard input:17`.
struct Place<'a>(&'a Path, Option<u64>);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == Path::new("-") {
            f.write_str("standard input")?;
        } else {
            write!(f, "{}", self.0.display())?;
        }
        match self.1 {
            Some(line) => write!(f, ":{line}"),
            None => Ok(()),
        }
    }
}

/// The system's reason, without Rust's "(os error 13)".
struct Reason<'a>(&'a io::Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        match self.0.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => {
                return write!(
                    f,
                    "too many open files: raise the limit (ulimit -n) or lower {}",
                    option("threads")
                );
            }
            Some(libc::EFBIG) => {
                return f.write_str("the file would exceed the file size limit: raise it (ulimit -f)");
            }
            _ => {}
        }
        let short = text.split(" (os error").next().unwrap_or(&text);
        f.write_str(&short.to_lowercase())
    }
}

/// Sizes as the budget prints them: powers of 1000.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        match bytes {
            0..1_000 => write!(f, "{bytes} bytes"),
            1_000..1_000_000 => write!(f, "{} KB", bytes.div_ceil(1_000)),
            1_000_000..1_000_000_000 => write!(f, "{} MB", bytes.div_ceil(1_000_000)),
            _ => write!(f, "{:.2} GB", bytes as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_name_the_place_and_the_fix() {
        let broken = Error::Broken {
            path: "a.jsonl".into(),
            line: Some(17),
            what: "is not valid JSON (column 4)".into(),
        };
        assert_eq!(
            broken.to_string(),
            "a.jsonl:17 is not valid JSON (column 4): repair it, or pass \u{2}on_error\u{1f}skip\u{3} to skip it"
        );
        let missing =
            Error::MissingField { path: "-".into(), line: Some(2), field: "text".into(), found: vec![] };
        assert!(missing.to_string().starts_with("standard input:2 has no field \"text\""));
        let unreadable = Error::io(Path::new("x"), io::Error::from_raw_os_error(13));
        assert_eq!(unreadable.to_string(), "x: permission denied");
        let full = Error::write(Path::new("/tmp/x"), io::Error::from_raw_os_error(28));
        assert!(matches!(full, Error::DiskFull { .. }));
    }

    #[test]
    fn sizes_round_up() {
        let error = Error::Budget { need: 309_200_001, have: 64_000_000, what: "the merge table".into() };
        assert_eq!(error.to_string(), "needs at least 310 MB: the merge table, but the budget is 64 MB");
    }
}
