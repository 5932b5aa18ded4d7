//! A program that keeps versions of its own state in an archive, and drops the oldest.
//!
//! `cargo run -p onefold --example embed_an_archive -- ARCHIVE`

use onefold::{ArchiveFormat, Store, create_archive};

/// Versions that are kept.
const KEPT: usize = 3;

fn main() -> onefold::Result<()> {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("embed_an_archive ARCHIVE");
        std::process::exit(2);
    };
    if !std::path::Path::new(&path).exists() {
        create_archive(&path, &ArchiveFormat::default())?;
    }
    let archive = Store::open(&path)?;
    for version in 0..5 {
        save(&archive, &state(version))?;
    }
    let (mut newest, names) = (Vec::new(), archive.streams()?);
    archive.get(&names[names.len() - 1].name, &mut newest)?;
    println!("{} versions; the newest has {} bytes", names.len(), newest.len());
    archive.close()
}

/// Stores a version under a number that grows, so that names are in the order of time.
fn save(archive: &Store, state: &[u8]) -> onefold::Result<()> {
    let names = archive.streams()?;
    let last = names.last().and_then(|stream| stream.name.parse::<u64>().ok()).unwrap_or(0);
    let put = archive.put(&format!("{:08}", last + 1), &mut &*state)?;
    println!("version {}: {:?} bytes are new", last + 1, put.new_bytes);
    for old in names.iter().take((names.len() + 1).saturating_sub(KEPT)) {
        archive.remove(&old.name)?;
    }
    Ok(())
}

/// The state that the program would keep: mostly as it was in the version before.
fn state(version: u32) -> Vec<u8> {
    let line = |n: u32| format!("{n}: {}\n", if n == version * 100 { version } else { 0 });
    (0..100_000).map(line).collect::<String>().into_bytes()
}
