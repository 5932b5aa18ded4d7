//! Images of virtual machines: a system that was installed once, and ten clones of it with homes of
//! their own, as a recorded trace has them.
//!
//! The first phase of the trace is the image from which all were cloned; each further phase has the
//! blocks in which a clone differs from it. Blocks of zeroes were never written.

use std::{collections::BTreeMap, path::Path};

use onefold_core::{BLOCK_BYTES, Block, Result};

use onefold_lab::{
    content::Content,
    trace::{Op, Reader},
};

use crate::item::Extent;

/// The beginning of the trace's name.
const NAME: &str = "vmclones";

/// An image: what each of its blocks holds.
pub(super) type Image = BTreeMap<u64, Content>;

/// The trace, if it was given.
pub(super) fn trace(extent: &Extent) -> Option<&Path> {
    let named = |path: &&std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(NAME))
    };
    extent.traces.iter().find(named).map(std::path::PathBuf::as_path)
}

/// The clones, as many as are asked for, if there are so many, and the bytes of an image's
/// addresses.
///
/// # Errors
/// The trace's.
pub(super) fn images(path: &Path, most: usize) -> Result<(Vec<Image>, u64)> {
    let mut reader = Reader::open(path)?;
    let bytes = reader.device_blocks() * BLOCK_BYTES as u64;
    let (mut first, mut clones) = (None::<Image>, Vec::new());
    let mut image = Image::new();
    for record in &mut reader {
        match record?.op {
            Op::Phase(_) => {
                let done = std::mem::take(&mut image);
                image = first.as_ref().unwrap_or(&done).clone();
                // The mark before the first image ends nothing.
                match &first {
                    None if done.is_empty() => {}
                    None => first = Some(done),
                    Some(_) => clones.push(done),
                }
            }
            Op::Write { lba, hash, lz4, .. } => drop(image.insert(lba.0, Content { hash, lz4 })),
            _ => {}
        }
    }
    clones.push(image);
    clones.truncate(most);
    clones.iter_mut().for_each(|image| image.retain(|_, content| !content.is_zero()));
    Ok((clones, bytes))
}

/// Runs of an image's blocks with their bytes, none longer than so many blocks: where each begins,
/// and what it holds.
pub(super) fn runs(image: &Image, longest: usize) -> impl Iterator<Item = (u64, Vec<u8>)> + '_ {
    let mut blocks = image.iter().peekable();
    std::iter::from_fn(move || {
        let (&begin, content) = blocks.next()?;
        let (mut bytes, mut next) = (filled(content), begin + 1);
        while let Some((_, content)) =
            blocks.next_if(|(lba, _)| **lba == next && next - begin < longest as u64)
        {
            bytes.extend(filled(content));
            next += 1;
        }
        Some((begin * BLOCK_BYTES as u64, bytes))
    })
}

fn filled(content: &Content) -> Vec<u8> {
    let mut block = Block([0; BLOCK_BYTES]);
    content.fill(&mut block);
    block.0.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_differ_from_each_other_by_little() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/data/vmclones.dtrace.zst");
        let (images, bytes) = images(&path, usize::MAX).unwrap();
        assert_eq!((images.len(), bytes), (10, 320 << 20));
        for image in &images[1..] {
            let same =
                image.iter().filter(|(lba, content)| images[0].get(lba) == Some(content)).count();
            assert!((28_000..image.len() - 1000).contains(&same), "{same} of {}", image.len());
        }
    }

    #[test]
    fn runs_are_the_image() {
        let content = |number| Content::numbered(1, number, 4096);
        let image: Image = [1, 2, 3, 7].map(|lba| (lba, content(lba))).into();
        let found: Vec<(u64, usize)> =
            runs(&image, 2).map(|(at, bytes)| (at / 4096, bytes.len() / 4096)).collect();
        assert_eq!(found, [(1, 2), (3, 1), (7, 1)]);
    }
}
