//! Disk images built from files of this machine.

use std::{
    fs::{self, File},
    io::{BufWriter, Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::Tools;
use crate::{
    cleanup::Scratch,
    product::path,
    program::{program, run},
};

/// Larger files are left out: many files make a better example than a few.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Of so many files one is edited, in the second image.
const EDITED_EVERY: usize = 20;

/// Of so many files one is gone, in the second image.
const DELETED_EVERY: usize = 50;

/// Builds both images and says in a few words what they are.
pub(crate) fn build(
    scratch: &Scratch,
    tools: Tools,
    first: &Path,
    later: &Path,
    bytes: u64,
) -> Result<String> {
    let files = collect(bytes)?;
    let taken: u64 = files.iter().map(|(_, size)| size).sum();
    let about = format!("{} files, {} MiB, of this machine", files.len(), taken >> 20);
    let edited = "and the same after one file in 20 was edited and one in 50 deleted";
    if !tools.have("mke2fs") {
        archive(first, &files, false)?;
        archive(later, &files, true)?;
        return Ok(format!("{about}, one after the other (there is no mke2fs here), {edited}."));
    }
    let tree = scratch.file("tree");
    for (file, _) in &files {
        let copy = inside(&tree, file);
        fs::create_dir_all(copy.parent().unwrap_or(&tree))?;
        let _ = fs::copy(file, copy);
    }
    let room = (taken + (taken >> 3) + (files.len() as u64 * 4096) + (64 << 20)) >> 20;
    file_system(&tree, first, room)?;
    for (n, (file, _)) in files.iter().enumerate() {
        let copy = inside(&tree, file);
        if n % DELETED_EVERY == 1 {
            let _ = fs::remove_file(copy);
        } else if n % EDITED_EVERY == 1 {
            let content = fs::read(&copy).unwrap_or_default();
            let _ = fs::remove_file(&copy);
            fs::write(copy, edit(&content))?;
        }
    }
    file_system(&tree, later, room)?;
    fs::remove_dir_all(&tree)?;
    Ok(format!("an ext4 file system with {about}, {edited}."))
}

/// Bytes of an image in blocks that are not all zero.
pub(crate) fn data_bytes(image: &Path) -> Result<u64> {
    let mut file = File::open(image)?;
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(bytes);
        }
        bytes +=
            buffer[..n].chunks(4096).filter(|block| block.iter().any(|&byte| byte != 0)).count()
                as u64
                * 4096;
    }
}

/// Readable files that every machine with Rust has, up to `bytes` bytes together, always in the
/// same order.
fn collect(bytes: u64) -> Result<Vec<(PathBuf, u64)>> {
    let sysroot = run(
        {
            let mut command = program("rustc");
            command.args(["--print", "sysroot"]);
            command
        },
        Duration::from_secs(60),
    )
    .unwrap_or_default();
    let mut places: Vec<PathBuf> = ["/usr/bin", "/usr/share", "/usr/lib"].map(PathBuf::from).into();
    places.push(Path::new(sysroot.trim()).join("lib"));
    places.push(Path::new(sysroot.trim()).join("share"));
    let mut files = Vec::new();
    let mut left = bytes;
    for place in places {
        // No place takes all, so that there are programs, texts and libraries.
        let mut share = (bytes * 2 / 5).min(left);
        let before = share;
        walk(&place, &mut share, &mut files);
        left -= before - share;
    }
    ensure!(bytes - left > bytes / 8, "too few files found for a disk image");
    Ok(files)
}

fn walk(directory: &Path, left: &mut u64, files: &mut Vec<(PathBuf, u64)>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let Ok(meta) = fs::symlink_metadata(entry.path()) else { continue };
        if meta.is_dir() {
            walk(&entry.path(), left, files);
        } else if meta.is_file()
            && meta.len() > 0
            && meta.len() <= FILE_BYTES_MAX.min(*left)
            && File::open(entry.path()).is_ok()
        {
            *left -= meta.len();
            files.push((entry.path(), meta.len()));
        }
    }
}

/// Where a file of the machine lies in the tree.
fn inside(tree: &Path, file: &Path) -> PathBuf {
    tree.join(file.strip_prefix("/").unwrap_or(file))
}

/// A line goes in at the top: everything behind it moves.
fn edit(content: &[u8]) -> Vec<u8> {
    [b"# edited\n", content].concat()
}

fn file_system(tree: &Path, image: &Path, mebibytes: u64) -> Result<()> {
    let mut command = program("mke2fs");
    command.args([
        "-q",
        "-t",
        "ext4",
        "-b",
        "4096",
        "-m",
        "0",
        "-d",
        path(tree),
        path(image),
        &format!("{mebibytes}M"),
    ]);
    run(command, Duration::from_secs(120)).map(|_| ())
}

/// Files one after the other, each from a block boundary on, as file systems keep them.
fn archive(image: &Path, files: &[(PathBuf, u64)], later: bool) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(image).context("the image")?);
    for (n, (file, _)) in files.iter().enumerate() {
        if later && n % DELETED_EVERY == 1 {
            continue;
        }
        let Ok(mut content) = fs::read(file) else { continue };
        if later && n % EDITED_EVERY == 1 {
            content = edit(&content);
        }
        let mut header = file.to_string_lossy().into_owned().into_bytes();
        header.resize(4096, 0);
        content.resize(content.len().next_multiple_of(4096), 0);
        out.write_all(&header)?;
        out.write_all(&content)?;
    }
    out.flush().context("the image")
}
