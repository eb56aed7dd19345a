//! One pass over the text: what it contains, and which cleaning steps it needs.

use super::characters::{self, BLANK, Characters, REPLACEABLE, SPACE, SYMBOL, UNSETTLED};
use super::lines::{WIDTH, leads};
use super::normalize;

/// Three blank lines in a row are four line ends: each byte is checked together with the three before it.
const LOOKBEHIND: usize = 3;
/// Pads the first and the last chunk: a byte that counts as a character and as nothing else.
const FILLER: u8 = b'a';

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Survey {
    pub characters: u64,
    pub symbols: u64,
    /// U+FFFD
    pub invalid: u64,
    pub newlines: u64,
    /// There is a character that normalization replaces or removes.
    pub replaceable: bool,
    /// There is a character that NFC may change.
    pub unsettled: bool,
    /// NFC changes something; only determined with `check_nfc`.
    pub decomposed: bool,
    /// Some line ends with a blank, or there are too many blank lines or some at an end of the text. Valid only if
    /// nothing is replaceable.
    pub untidy: bool,
    /// All is white space.
    pub empty: bool,
    /// Where the last run of unsettled characters ends.
    checked: usize,
}

impl Survey {
    pub fn of(text: &str, check_nfc: bool) -> Survey {
        let bytes = text.as_bytes();
        let mut survey = Survey { empty: true, ..Survey::default() };
        let mut at = 0;
        while at < bytes.len() {
            let whole = at.checked_sub(LOOKBEHIND).and_then(|start| bytes[start..].first_chunk());
            let chunk = match whole {
                Some(window) => Chunk::of(window),
                None => Chunk::at_an_end(bytes, at),
            };
            survey.add(&chunk);
            if chunk.leads != 0 {
                survey.look_up(text, at, chunk.leads, check_nfc);
            }
            at += WIDTH;
        }
        // A blank first line with blanks in it was noticed at its "\n", or is the whole text.
        survey.untidy |= bytes.first() == Some(&b'\n') || ends_in_space(text);
        survey
    }

    #[inline]
    fn add(&mut self, chunk: &Chunk) {
        self.characters += u64::from(chunk.characters);
        self.symbols += u64::from(chunk.symbols);
        self.newlines += u64::from(chunk.newlines);
        self.replaceable |= chunk.replaceable;
        self.untidy |= chunk.untidy;
        self.empty &= chunk.visible == 0;
    }

    /// The characters that are not ASCII, one by one.
    fn look_up(&mut self, text: &str, base: usize, mut leads: u64, check_nfc: bool) {
        let bytes = text.as_bytes();
        let characters = Characters::get();
        let mut all = 0;
        while leads != 0 {
            let at = base + leads.trailing_zeros() as usize;
            leads &= leads - 1;
            let (code_point, flags, width) = characters.decode(bytes, at);
            all |= flags;
            self.symbols += u64::from(flags & SYMBOL);
            self.invalid += u64::from(code_point == 0xFFFD);
            self.empty &= flags & SPACE != 0;
            if flags & (BLANK | UNSETTLED) != 0 {
                self.untidy |= flags & BLANK != 0 && bytes.get(at + width) == Some(&b'\n');
                if flags & UNSETTLED != 0 && at >= self.checked && check_nfc && !self.decomposed {
                    (self.decomposed, self.checked) = normalize::changes_at(text, at);
                }
            }
        }
        self.replaceable |= all & REPLACEABLE != 0;
        self.unsettled |= all & UNSETTLED != 0;
    }
}

fn ends_in_space(text: &str) -> bool {
    let last = text.chars().next_back();
    last.is_some_and(|last| characters::flags(last) & SPACE != 0)
}

/// 64 bytes: their characters (counted where they begin), and everything about those that are ASCII.
#[derive(Default)]
struct Chunk {
    characters: u8,
    symbols: u8,
    newlines: u8,
    /// ASCII characters that are not white space.
    visible: u8,
    replaceable: bool,
    untidy: bool,
    /// Where characters begin that are not ASCII.
    leads: u64,
}

impl Chunk {
    /// Plain comparisons, and sums that fit into a byte: the compiler vectorizes it, 16 bytes or more at once.
    #[inline]
    fn of(window: &[u8; LOOKBEHIND + WIDTH]) -> Chunk {
        let bytes: &[u8; WIDTH] = window.last_chunk().expect("the window is longer than a chunk");
        let mut chunk = Chunk::default();
        let mut foreign = 0;
        let mut controls = 0;
        for &byte in bytes {
            let word =
                u8::from((byte | 0x20).wrapping_sub(b'a') < 26) | u8::from(byte.wrapping_sub(b'0') < 10);
            let space = u8::from(byte == b' ') | u8::from(byte.wrapping_sub(b'\t') < 5);
            let newline = u8::from(byte == b'\n');
            let unseen = space | byte >> 7;
            chunk.symbols += 1 - (word | unseen);
            chunk.visible += 1 - unseen;
            chunk.newlines += newline;
            foreign |= byte;
            controls |=
                u8::from(byte < b' ') & (1 - (newline | u8::from(byte == b'\t'))) | u8::from(byte == 0x7F);
        }
        let mut untidy = 0;
        for (at, &byte) in bytes.iter().enumerate() {
            let [third, second, first] = [window[at], window[at + 1], window[at + 2]];
            let blank = u8::from(first == b' ') | u8::from(first == b'\t');
            let lines = u8::from(first == b'\n') & u8::from(second == b'\n') & u8::from(third == b'\n');
            untidy |= u8::from(byte == b'\n') & (blank | lines);
        }
        chunk.replaceable = controls != 0;
        chunk.untidy = untidy != 0;
        chunk.characters = WIDTH as u8;
        if foreign >= 0x80 {
            chunk.characters = bytes.iter().map(|&byte| u8::from(byte & 0xC0 != 0x80)).sum();
            chunk.leads = leads(bytes);
        }
        chunk
    }

    /// The chunk at `at` when the text is too short before it or after it.
    fn at_an_end(bytes: &[u8], at: usize) -> Chunk {
        let start = at.saturating_sub(LOOKBEHIND);
        let end = bytes.len().min(at + WIDTH);
        let mut window = [FILLER; LOOKBEHIND + WIDTH];
        window[LOOKBEHIND - (at - start)..][..end - start].copy_from_slice(&bytes[start..end]);
        let mut chunk = Chunk::of(&window);
        let filled = (at + WIDTH - end) as u8;
        chunk.characters -= filled;
        chunk.visible -= filled;
        chunk
    }
}
