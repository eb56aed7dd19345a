//! The 256 bytes as the first 256 ids, in the order of every byte-level tokenizer file: first the bytes that print as
//! themselves, then the others, each group ascending. Ties between equal counts are broken by id, so the order is part
//! of the result.

pub const fn prints(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// `BYTES[id]` is the byte, `IDS[byte]` the id.
pub const BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut id = 0;
    let mut group = 0;
    while group < 2 {
        let mut byte = 0;
        while byte < 256 {
            if prints(byte as u8) == (group == 0) {
                bytes[id] = byte as u8;
                id += 1;
            }
            byte += 1;
        }
        group += 1;
    }
    bytes
};

pub const IDS: [u8; 256] = {
    let mut ids = [0; 256];
    let mut id = 0;
    while id < 256 {
        ids[BYTES[id] as usize] = id as u8;
        id += 1;
    }
    ids
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_published_order() {
        assert_eq!(BYTES[0], b'!');
        assert_eq!(BYTES[187], 0xFF);
        assert_eq!(BYTES[188], 0);
        assert_eq!(BYTES[220], b' ');
        assert_eq!(BYTES[255], 0xAD);
        assert!((0..=255u8).all(|byte| BYTES[IDS[byte as usize] as usize] == byte));
    }
}
