//! The ids of one example -> a row of each array: inputs, labels, and with a document mask positions and documents.

/// The label that no loss is taken of.
pub const IGNORED: i64 = -100;

/// The arrays of a batch, or a row of each.
pub struct Rows<'a> {
    pub inputs: &'a mut [i64],
    pub labels: &'a mut [i64],
    /// (places from the start of the document, number of the document in the row)
    pub documents: Option<(&'a mut [i64], &'a mut [i64])>,
}

impl Rows<'_> {
    /// Row `number` of arrays whose rows have `length` places.
    pub fn row(&mut self, number: usize, length: usize) -> Rows<'_> {
        let places = number * length..(number + 1) * length;
        Rows {
            inputs: &mut self.inputs[places.clone()],
            labels: &mut self.labels[places.clone()],
            documents: self
                .documents
                .as_mut()
                .map(|(positions, documents)| (&mut positions[places.clone()], &mut documents[places])),
        }
    }
}

#[derive(Clone, Copy)]
pub struct RowRules {
    /// The id behind every document.
    pub end_id: Option<i64>,
}

impl RowRules {
    /// `ids` are those of the row and, where there is one, the id behind it; of the row the first `text` are no padding.
    pub fn fill(self, ids: &[i64], text: usize, row: &mut Rows<'_>) {
        let length = row.inputs.len();
        row.inputs.copy_from_slice(&ids[..length]);
        row.labels[..ids.len() - 1].copy_from_slice(&ids[1..]);
        if ids.len() == length {
            row.labels[text.saturating_sub(1)..].fill(IGNORED);
        }
        let (Some(end), Some((positions, documents))) = (self.end_id, &mut row.documents) else {
            return;
        };
        let (mut position, mut document) = (0, 0);
        for place in 0..length {
            positions[place] = position;
            documents[place] = document;
            position += 1;
            if row.inputs[place] == end {
                // What comes next is of another document, and does not follow from this one.
                row.labels[place] = IGNORED;
                position = 0;
                document += 1;
            }
        }
    }
}
