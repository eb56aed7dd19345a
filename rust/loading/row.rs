//! Fills one row of each array from an example's ids: inputs, labels, and with a document mask positions and documents.

use crate::kernels::IGNORE;

/// The arrays of a batch, or a row of each.
pub struct Rows<'a> {
    pub inputs: &'a mut [i64],
    pub labels: &'a mut [i64],
    /// (position within the document, index of the document in the row)
    pub documents: Option<(&'a mut [i64], &'a mut [i64])>,
}

impl Rows<'_> {
    /// Row `number` of arrays with rows of `length` elements.
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

/// `ids` are those of the row and, if there is one, the next id; the first `text` of the row are not padding. `end_id`
/// ends every document.
pub fn fill_row(ids: &[i64], text: usize, end_id: Option<i64>, row: &mut Rows<'_>) {
    let length = row.inputs.len();
    row.inputs.copy_from_slice(&ids[..length]);
    row.labels[..ids.len() - 1].copy_from_slice(&ids[1..]);
    if ids.len() == length {
        row.labels[text.saturating_sub(1)..].fill(IGNORE);
    }
    let (Some(end), Some((positions, documents))) = (end_id, &mut row.documents) else {
        return;
    };
    let (mut position, mut document) = (0, 0);
    for place in 0..length {
        positions[place] = position;
        documents[place] = document;
        position += 1;
        if row.inputs[place] == end {
            // The next id is of another document, so it is not to be predicted from this one.
            row.labels[place] = IGNORE;
            position = 0;
            document += 1;
        }
    }
}
