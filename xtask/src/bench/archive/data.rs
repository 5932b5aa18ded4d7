//! The data that is stored: made here, or got by cargo.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::LIMIT;
use crate::{
    cleanup::Scratch,
    demo::{Tools, image},
    product::path,
    program::{cargo, program, run},
};

/// Bytes of a generation of the stream, and for a first look.
const STREAM_BYTES: usize = 384 << 20;
const STREAM_QUICK_BYTES: usize = 64 << 20;

/// Bytes of this machine's files in an image.
const IMAGE_BYTES: u64 = 900 << 20;
const IMAGE_QUICK_BYTES: u64 = 100 << 20;

/// Packages with large sources, in an older and a newer release each.
const CRATES: [(&str, [&str; 2]); 5] = [
    ("openssl-src", ["300.1.6", "300.3.2"]),
    ("librocksdb-sys", ["0.16.0", "0.17.1"]),
    ("aws-lc-sys", ["0.21.2", "0.24.0"]),
    ("windows", ["0.57.0", "0.58.0"]),
    ("libsqlite3-sys", ["0.28.0", "0.30.1"]),
];

/// Tars of a source tree in two releases, as nightly tars of one tree would be: sorted, with the
/// same owners and times.
pub(super) fn tree(place: &Path, quick: bool) -> Result<[PathBuf; 2]> {
    let tar = |n: usize| -> Result<PathBuf> {
        let scratch = Scratch::new("bench-tree")?;
        let sources = vendor(&scratch, n, if quick { 1 } else { CRATES.len() })?;
        let file = place.join(format!("tree-{}.tar", n + 1));
        let mut command = program("tar");
        command.args([
            "--sort=name",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mtime=@0",
            "--format=ustar",
        ]);
        command.args(["-C", path(&sources), "-cf", path(&file), "."]);
        run(command, LIMIT)?;
        Ok(file)
    };
    Ok([tar(0)?, tar(1)?])
}

/// A directory with the sources of the first packages, in the older or the newer release, without
/// versions in names.
fn vendor(scratch: &Scratch, release: usize, packages: usize) -> Result<PathBuf> {
    let project = scratch.file("project");
    fs::create_dir_all(project.join("src"))?;
    fs::write(project.join("src/lib.rs"), "")?;
    let line =
        |(name, releases): &(&str, [&str; 2])| format!("{name} = \"={}\"\n", releases[release]);
    let needs: String = CRATES[..packages].iter().map(line).collect();
    let head = "[package]\nname = \"sources\"\nversion = \"0.0.0\"\nedition = \
                \"2024\"\n\n[workspace]\n\n[dependencies]\n";
    fs::write(project.join("Cargo.toml"), format!("{head}{needs}"))?;
    let mut command = cargo(["vendor", "--quiet", "--versioned-dirs", "vendored"]);
    command.current_dir(&project);
    run(command, LIMIT).context("cargo could not get the sources")?;
    let sources = project.join("sources");
    fs::create_dir(&sources)?;
    for entry in fs::read_dir(project.join("vendored"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let found = CRATES[..packages].iter().find(|(package, releases)| {
            name.starts_with(&format!("{package}-{}", releases[release]))
        });
        if let Some((package, _)) = found {
            fs::rename(project.join("vendored").join(&name), sources.join(package))?;
        }
    }
    Ok(sources)
}

/// Images of a file system with files of this machine, the second edited, as the demonstration
/// makes them.
pub(super) fn image(place: &Path, quick: bool) -> Result<[PathBuf; 2]> {
    let scratch = Scratch::new("bench-image")?;
    let files = [place.join("image-1"), place.join("image-2")];
    let about = image::build(
        &scratch,
        Tools::Installed,
        &files[0],
        &files[1],
        if quick { IMAGE_QUICK_BYTES } else { IMAGE_BYTES },
    )?;
    println!("\nThe images are {about}");
    Ok(files)
}

/// Two generations of a stream: of the first 32.5 % repeat what came before in it, of the second
/// 97.6 % are of the first (dedupv1, section 4.1). The lengths of the runs are a choice: the
/// report's came from a trace that is not public.
pub(in crate::bench) fn stream(place: &Path, quick: bool) -> Result<[PathBuf; 2]> {
    let bytes = if quick { STREAM_QUICK_BYTES } else { STREAM_BYTES };
    const RUN: f64 = 1048576.0;
    const UNIQUE_RUN: f64 = 32768.0;
    const INTERNAL: f64 = 0.325;
    const TEMPORAL: f64 = 0.976;
    let mut noise = Noise(976);
    let mut first: Vec<u8> = Vec::with_capacity(bytes + (64 << 20));
    while first.len() < bytes {
        let n = noise.run(RUN);
        noise.fill(&mut first, n);
        let n = noise.run(RUN * INTERNAL / (1.0 - INTERNAL));
        if n < first.len() {
            let from = noise.below(first.len() - n);
            first.extend_from_within(from..from + n);
        }
    }
    first.truncate(bytes);
    let (mut second, mut at) = (Vec::with_capacity(bytes + (64 << 20)), 0);
    while at < bytes {
        let n = noise.run(UNIQUE_RUN * TEMPORAL / (1.0 - TEMPORAL));
        second.extend_from_slice(&first[at..bytes.min(at + n)]);
        let fresh = noise.run(UNIQUE_RUN);
        noise.fill(&mut second, fresh);
        at += n + noise.below(2 * fresh + 1);
    }
    second.truncate(bytes);
    let files = [place.join("stream-1"), place.join("stream-2")];
    for (file, data) in files.iter().zip([first, second]) {
        let mut out = BufWriter::new(File::create(file)?);
        out.write_all(&data)?;
        out.flush()?;
    }
    Ok(files)
}

/// Numbers by chance, the same each time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// An exponential length.
    fn run(&mut self, mean: f64) -> usize {
        let part = ((self.next() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        (-part.ln() * mean) as usize + 1
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn fill(&mut self, into: &mut Vec<u8>, bytes: usize) {
        let end = into.len() + bytes;
        while into.len() < end {
            into.extend_from_slice(&self.next().to_le_bytes());
        }
        into.truncate(end);
    }
}
