//! RAD (Liu et al.): placement in stripes by reference counts, and what garbage collection then has
//! to encode again.
//!
//! A stripe has `k` chunks of 4 KiB and `n - k` of parity on `n` of the nodes. Versions are
//! uploaded one after the other, then deleted in the same order. A chunk whose last reference goes
//! is dead. A stripe with dead and living chunks is broken: what lives in it is read and encoded
//! again, in new stripes; one with only dead chunks goes as a whole.
//!
//! *Round-robin* fills stripes in the order of arrival. *RAD* sorts the new chunks of a batch by
//! their reference counts first, the highest in front, and does the same with what it encodes
//! again. With a *delay*, chunks stand replicated, `n - k + 1` times, until their counts stood
//! still for so many versions; only then are they encoded.
//!
//! Time is virtual: see [`Model`].

pub mod expected;
pub mod manifest;
pub mod reliability;
mod stripes;

use std::collections::HashMap;

use onefold_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use self::{
    manifest::{CHUNK_BYTES, Version},
    stripes::{Array, Work},
};

/// Most nodes and chunks of a stripe.
pub const NODES_MAX: usize = 255;

/// How chunks come into stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// As they arrive.
    RoundRobin,
    /// Sorted by reference counts.
    Rad,
}

/// The parameters of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Chunks of a stripe, with parity.
    pub n: usize,
    /// Chunks of a stripe, without.
    pub k: usize,
    /// Nodes.
    pub nodes: usize,
    /// Versions whose new chunks are placed together.
    pub batch: usize,
    /// Versions for which counts must stand still before a chunk is encoded; 0 encodes at once.
    pub delay: usize,
    /// How.
    pub placement: Placement,
    /// Stripes of new chunks have chunks of one class only, as [`Outcome::classes`] tells them apart.
    pub by_class: bool,
}

/// How long things take.
///
/// Nodes work side by side, so that the slowest counts. The figures are those of a small disk node:
/// only the ratio between them matters.
pub struct Model;

impl Model {
    /// Reading or writing a chunk on a node: 100 MB/s.
    pub const CHUNK_SECONDS: f64 = CHUNK_BYTES as f64 / 100e6;
    /// Encoding a chunk: 1 GB/s.
    pub const ENCODE_SECONDS: f64 = CHUNK_BYTES as f64 / 1e9;
    /// Comparing two counts while sorting.
    pub const COMPARE_SECONDS: f64 = 20e-9;
    /// Changing a count in the metadata server.
    pub const COUNT_SECONDS: f64 = 1e-6;
}

/// The cost of deleting one version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Deletion {
    /// The version.
    pub version: String,
    /// Chunks whose last reference went.
    pub dead_chunks: u64,
    /// Living chunks of broken stripes, which were encoded again.
    pub reencoded_chunks: u64,
    /// Stripes that there were.
    pub stripes: u64,
    /// Stripes with dead and living chunks.
    pub broken_stripes: u64,
    /// Parity and moved chunks.
    pub bytes_written: u64,
    /// Seconds of the model.
    pub virtual_seconds: f64,
}

/// The result of a replay; sums over the deletions unless the name says something else.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Chunks of a stripe, with and without parity.
    pub code: [usize; 2],
    /// Nodes.
    pub nodes: usize,
    /// Versions placed together.
    pub batch: usize,
    /// Versions that encoding waited for.
    pub delay: usize,
    /// How chunks were placed.
    pub placement: Placement,
    /// Chunks of all versions.
    pub chunks: u64,
    /// Different ones.
    pub unique_chunks: u64,
    /// The share of different chunks with more than one reference (RAD, section V).
    pub alpha: f64,
    /// Living chunks of broken stripes.
    pub reencoded_chunks: u64,
    /// Stripes when all versions were there.
    pub stripes: u64,
    /// Chunks by their counts in the batch in which they were encoded: one reference; between; at
    /// least three, the most, and no more than a tenth of the batch.
    pub classes: [u64; 3],
    /// Stripes that broke.
    pub broken_stripes: u64,
    /// Bytes written by deletions.
    pub bytes_written: u64,
    /// Seconds of the model.
    pub virtual_seconds: f64,
    /// Bytes written before: chunks, copies and parity.
    pub upload_bytes_written: u64,
    /// Both.
    pub total_bytes_written: u64,
    /// Seconds of the model for the upload.
    pub upload_virtual_seconds: f64,
    /// Each deletion.
    pub deletions: Vec<Deletion>,
}

/// A chunk that waits for its stripe.
#[derive(Clone, Copy)]
struct Waiting {
    chunk: usize,
    /// The version that changed its count last.
    changed: usize,
}

/// What there is when all versions are uploaded.
struct Uploaded {
    /// The chunks of each version, by number.
    chunks_of: Vec<Vec<usize>>,
    references: Vec<u32>,
    array: Array,
    work: Work,
    /// Chunks that stood as copies for a while, times their number.
    copies: u64,
    classes: [u64; 3],
}

impl Uploaded {
    fn new(versions: &[Version], options: &Options) -> Uploaded {
        let mut numbers: HashMap<u64, usize> = HashMap::new();
        let chunks_of: Vec<Vec<usize>> = versions
            .iter()
            .map(|version| {
                let number = |&hash: &u64| {
                    let next = numbers.len();
                    *numbers.entry(hash).or_insert(next)
                };
                version.chunks.iter().map(number).collect()
            })
            .collect();
        let array = Array::new(options, numbers.len());
        let work = array.work();
        let references = vec![0; numbers.len()];
        let mut uploaded =
            Uploaded { chunks_of, references, array, work, copies: 0, classes: [0; 3] };
        uploaded.upload(options);
        uploaded
    }
}

/// What the deletion of each version would do if it were the first.
///
/// # Errors
/// `InvalidInput` for options that make no sense.
pub fn each_alone(versions: &[Version], options: &Options) -> Result<Vec<Deletion>> {
    valid(options)?;
    let Uploaded { chunks_of, references, array, .. } = Uploaded::new(versions, options);
    let alone = |(version, chunks): (&Version, &Vec<usize>)| {
        delete(version, chunks, &mut references.clone(), &mut array.clone())
    };
    Ok(versions.iter().zip(&chunks_of).map(alone).collect())
}

/// Uploads all versions and deletes them in order.
///
/// # Errors
/// `InvalidInput` for options that make no sense.
pub fn replay(versions: &[Version], options: &Options) -> Result<Outcome> {
    valid(options)?;
    let uploaded = Uploaded::new(versions, options);
    let Uploaded { chunks_of, mut references, mut array, work: upload, copies, classes } = uploaded;
    let shared = references.iter().filter(|&&count| count > 1).count();
    let stripes = array.stripes();
    let mut deletions = Vec::new();
    for (version, chunks) in versions.iter().zip(&chunks_of) {
        deletions.push(delete(version, chunks, &mut references, &mut array));
    }
    let sum = |of: fn(&Deletion) -> u64| deletions.iter().map(of).sum::<u64>();
    let (bytes_written, upload_bytes_written) =
        (sum(|deletion| deletion.bytes_written), upload.bytes() + copies * CHUNK_BYTES);
    let seconds = |work: &Work, more: f64| work.seconds() + more;
    Ok(Outcome {
        code: [options.n, options.k],
        nodes: options.nodes,
        batch: options.batch,
        delay: options.delay,
        placement: options.placement,
        chunks: chunks_of.iter().map(|chunks| chunks.len() as u64).sum(),
        unique_chunks: references.len() as u64,
        alpha: shared as f64 / references.len().max(1) as f64,
        reencoded_chunks: sum(|deletion| deletion.reencoded_chunks),
        stripes,
        classes,
        broken_stripes: sum(|deletion| deletion.broken_stripes),
        bytes_written,
        virtual_seconds: deletions.iter().map(|deletion| deletion.virtual_seconds).sum(),
        upload_bytes_written,
        total_bytes_written: upload_bytes_written + bytes_written,
        upload_virtual_seconds: seconds(
            &upload,
            copies as f64 * Model::CHUNK_SECONDS / options.nodes as f64,
        ),
        deletions,
    })
}

fn valid(options: &Options) -> Result<()> {
    let Options { n, k, nodes, batch, .. } = *options;
    if k == 0 || k >= n || n > nodes || nodes > NODES_MAX {
        let why = format!(
            "a code N,K needs 0 < K < N, and N of at most {NODES_MAX} nodes; this is {n},{k} on \
             {nodes}"
        );
        return Err(Error::new(Kind::InvalidInput, why));
    }
    if batch == 0 {
        return Err(Error::new(Kind::InvalidInput, "a batch has at least one version"));
    }
    Ok(())
}

impl Uploaded {
    fn upload(&mut self, options: &Options) {
        let Uploaded { chunks_of, references, array, work, copies, classes } = self;
        // In the order of arrival.
        let (mut waiting, mut place): (Vec<Waiting>, Vec<Option<usize>>) =
            (Vec::new(), vec![None; references.len()]);
        for (now, chunks) in chunks_of.iter().enumerate() {
            for &chunk in chunks {
                if references[chunk] == 0 {
                    place[chunk] = Some(waiting.len());
                    waiting.push(Waiting { chunk, changed: now });
                    *copies +=
                        if options.delay > 0 { (options.n - options.k + 1) as u64 } else { 0 };
                } else if let Some(at) = place[chunk] {
                    waiting[at].changed = now;
                }
                references[chunk] += 1;
            }
            let last = now + 1 == chunks_of.len();
            if !(last || (now + 1) % options.batch == 0) {
                continue;
            }
            let (settled, rest): (Vec<Waiting>, Vec<Waiting>) =
                waiting.iter().partition(|waiting| last || now - waiting.changed >= options.delay);
            let settled: Vec<usize> = settled.iter().map(|waiting| waiting.chunk).collect();
            let counts = settled.iter().map(|&chunk| references[chunk]).collect();
            let [cold, between, hot] = class_sizes(counts);
            classes.iter_mut().zip([cold, between, hot]).for_each(|(all, more)| *all += more);
            settled.iter().for_each(|&chunk| place[chunk] = None);
            let mut settled = settled;
            if options.by_class && options.placement == Placement::Rad {
                settled.sort_by_key(|&chunk| std::cmp::Reverse(references[chunk]));
                let cold = settled.split_off((between + hot) as usize);
                let between = settled.split_off(hot as usize);
                for class in [settled, between, cold] {
                    array.encode(class, references, true, work);
                }
            } else {
                array.encode(settled, references, true, work);
            }
            waiting = rest;
            waiting.iter().enumerate().for_each(|(at, waiting)| place[waiting.chunk] = Some(at));
        }
    }
}

/// How many chunks of a batch with these counts are cold, between, and hot: hot are those with the
/// highest counts, from three on, as long as all with the same count fit into a tenth of the batch.
fn class_sizes(mut counts: Vec<u32>) -> [u64; 3] {
    counts.sort_unstable_by_key(|&count| std::cmp::Reverse(count));
    let cold = counts.iter().filter(|&&count| count == 1).count();
    let mut hot = 0;
    for group in counts.chunk_by(|a, b| a == b) {
        if group[0] < 3 || (hot + group.len()) * 10 > counts.len() {
            break;
        }
        hot += group.len();
    }
    [cold, counts.len() - cold - hot, hot].map(|n| n as u64)
}

fn delete(
    version: &Version,
    chunks: &[usize],
    references: &mut [u32],
    array: &mut Array,
) -> Deletion {
    let mut dead = Vec::new();
    for &chunk in chunks {
        references[chunk] -= 1;
        if references[chunk] == 0 {
            dead.push(chunk);
        }
    }
    let mut work = array.work();
    let stripes = array.stripes();
    let (broken, living) = array.remove(&dead);
    let reencoded = living.len() as u64;
    work.read(array, &living);
    array.encode(living, references, false, &mut work);
    Deletion {
        version: version.name.clone(),
        dead_chunks: dead.len() as u64,
        reencoded_chunks: reencoded,
        stripes,
        broken_stripes: broken,
        bytes_written: work.bytes(),
        virtual_seconds: work.seconds() + chunks.len() as f64 * Model::COUNT_SECONDS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str, chunks: impl IntoIterator<Item = u64>) -> Version {
        Version { name: name.into(), chunks: chunks.into_iter().collect() }
    }

    fn options(placement: Placement) -> Options {
        Options { n: 6, k: 4, nodes: 6, batch: 1, delay: 0, placement, by_class: false }
    }

    #[test]
    fn the_example_of_the_paper_breaks_fewer_stripes_when_it_is_sorted() {
        // Figure 2: six files of one batch, with A, F, G and H shared; file 1 goes first.
        let files = ["ABCDEF", "AFGHIJ", "KALMNO", "PGQRHS", "TUVWXA", "AFYZHH"];
        let versions: Vec<Version> =
            files.iter().map(|file| version(file, file.bytes().map(u64::from))).collect();
        let found =
            |placement| replay(&versions, &Options { batch: 6, ..options(placement) }).unwrap();
        let (robin, rad) = (found(Placement::RoundRobin), found(Placement::Rad));
        assert_eq!((robin.unique_chunks, robin.stripes, rad.stripes), (26, 7, 7));
        // B, C, D die in the stripe of A, E in that of F, G, H.
        assert_eq!(
            (
                robin.deletions[0].dead_chunks,
                robin.deletions[0].broken_stripes,
                robin.deletions[0].reencoded_chunks
            ),
            (4, 2, 4)
        );
        assert_eq!(
            (
                rad.deletions[0].dead_chunks,
                rad.deletions[0].broken_stripes,
                rad.deletions[0].reencoded_chunks
            ),
            (4, 0, 0)
        );
        assert!(rad.reencoded_chunks < robin.reencoded_chunks);
    }

    #[test]
    fn nothing_is_left_when_all_versions_are_gone() {
        let versions =
            [version("a", 0..100), version("b", 50..170), version("c", (0..40).chain(160..200))];
        for placement in [Placement::RoundRobin, Placement::Rad] {
            for (batch, delay) in [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2)] {
                let outcome =
                    replay(&versions, &Options { batch, delay, ..options(placement) }).unwrap();
                assert_eq!(
                    outcome.deletions.iter().map(|deletion| deletion.dead_chunks).sum::<u64>(),
                    outcome.unique_chunks
                );
                let last = outcome.deletions.last().unwrap();
                assert_eq!(
                    (last.reencoded_chunks, last.broken_stripes),
                    (0, 0),
                    "{placement:?} {batch} {delay}"
                );
                assert_eq!(
                    outcome.total_bytes_written,
                    outcome.upload_bytes_written + outcome.bytes_written
                );
            }
        }
    }

    #[test]
    fn copies_until_counts_settle_are_written_too() {
        let versions = [version("a", 0..40), version("b", 0..40)];
        let at_once = replay(&versions, &options(Placement::Rad)).unwrap();
        let late = replay(&versions, &Options { delay: 1, ..options(Placement::Rad) }).unwrap();
        // 40 chunks and 20 of parity; late, three copies of each before.
        assert_eq!(at_once.upload_bytes_written, 60 * CHUNK_BYTES);
        assert_eq!(late.upload_bytes_written, (60 + 120) * CHUNK_BYTES);
    }

    #[test]
    fn codes_that_make_no_sense_are_refused() {
        for (n, k, nodes, batch) in [(4, 4, 6, 1), (4, 0, 6, 1), (7, 4, 6, 1), (6, 4, 6, 0)] {
            let wrong = Options { n, k, nodes, batch, ..options(Placement::Rad) };
            assert_eq!(
                replay(&[version("a", 0..3)], &wrong).unwrap_err().kind(),
                Kind::InvalidInput
            );
        }
    }

    #[test]
    fn chunks_are_told_apart_by_their_counts_in_a_batch() {
        assert_eq!(class_sizes([vec![9; 2], vec![3; 8], vec![1; 10]].concat()), [10, 8, 2]);
        assert_eq!(class_sizes(vec![2; 4]), [0, 4, 0]);
        assert_eq!(class_sizes(Vec::new()), [0; 3]);
        let versions = [version("a", 0..40), version("b", 0..40)];
        let of = |batch| replay(&versions, &Options { batch, ..options(Placement::Rad) }).unwrap();
        assert_eq!((of(1).classes, of(2).classes), ([40, 0, 0], [0, 40, 0]));
        // 30 of one count and 41 of another, in stripes of four.
        let versions = [version("a", (0..41).chain(0..30).chain(50..80))];
        let stripes = |by_class| {
            replay(&versions, &Options { by_class, ..options(Placement::Rad) }).unwrap().stripes
        };
        assert_eq!((stripes(false), stripes(true)), (18, 19));
    }

    #[test]
    fn the_first_deletion_is_as_if_alone() {
        let versions = [version("a", 0..100), version("b", 50..170), version("c", 0..30)];
        let alone = each_alone(&versions, &options(Placement::Rad)).unwrap();
        let all = replay(&versions, &options(Placement::Rad)).unwrap();
        assert_eq!((alone.len(), &alone[0]), (3, &all.deletions[0]));
        assert_eq!(alone[2].dead_chunks, 0);
    }
}
