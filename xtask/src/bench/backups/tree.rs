//! The directory that is backed up: many small files, made here, the same each time.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

/// Files in one directory.
const FANOUT: usize = 100;

/// How old a change is before a backup that the next one is compared with: Onefold reads a file
/// again that changed within a minute of the last backup, and borg one whose time is the newest.
const SETTLED: Duration = Duration::from_secs(62);

/// Words of which files are made, so that they compress about as source code does.
const WORDS: [&str; 32] = [
    "the ", "block ", "store ", "of ", "a ", "fn ", "let ", "return ", "if ", "else ", "chunk ",
    "index ", "log ", "write ", "read ", "and ", "to ", "for ", "in ", "{\n", "}\n", "0x", "= ",
    "(", ") ", ";\n", "u64 ", "name ", "page ", "size ", "at ", "with ",
];

/// A directory of files.
pub(in crate::bench) struct Tree {
    pub(in crate::bench) path: PathBuf,
    files: usize,
    /// Bytes of a file made anew.
    bytes: usize,
    noise: u64,
    changed: Instant,
}

impl Tree {
    /// Makes `files` files of 1 to `2 * bytes` bytes, `bytes` on average.
    pub(in crate::bench) fn new(path: PathBuf, files: usize, bytes: usize) -> Result<Tree> {
        let mut tree = Tree { path, files: 0, bytes, noise: 1, changed: Instant::now() };
        tree.add(files)?;
        Ok(tree)
    }

    /// Adds files.
    pub(in crate::bench) fn add(&mut self, files: usize) -> Result<()> {
        for n in self.files..self.files + files {
            let file = self.file(n);
            if n.is_multiple_of(FANOUT)
                && let Some(directory) = file.parent()
            {
                fs::create_dir_all(directory)?;
            }
            self.write(&file)?;
        }
        self.files += files;
        self.changed = Instant::now();
        Ok(())
    }

    /// Writes one file in a hundred anew, others each time.
    pub(in crate::bench) fn change(&mut self) -> Result<()> {
        for _ in 0..self.files.div_ceil(100) {
            let n = self.next() as usize % self.files;
            self.write(&self.file(n))?;
        }
        self.changed = Instant::now();
        Ok(())
    }

    /// Waits until the last change is a minute ago.
    pub(in crate::bench) fn settle(&self) {
        thread::sleep(SETTLED.saturating_sub(self.changed.elapsed()));
    }

    /// Lets the kernel have all files in its cache.
    pub(in crate::bench) fn warm(&self) -> Result<()> {
        (0..self.files).try_for_each(|n| {
            fs::read(self.file(n))?;
            Ok(())
        })
    }

    /// Lets the kernel forget what the files hold; their names and attributes stay.
    pub(in crate::bench) fn cool(&self) -> Result<()> {
        rustix::fs::sync();
        (0..self.files).try_for_each(|n| {
            let file = fs::File::open(self.file(n))?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            Ok(())
        })
    }

    /// The file of a number.
    pub(in crate::bench) fn file(&self, n: usize) -> PathBuf {
        let directory = n / FANOUT;
        self.path
            .join(format!("{:03}", directory / FANOUT))
            .join(format!("{:02}", directory % FANOUT))
            .join(format!("file-{n}.txt"))
    }

    /// The number of files.
    pub(in crate::bench) fn files(&self) -> usize {
        self.files
    }

    fn write(&mut self, file: &Path) -> Result<()> {
        let bytes = 1 + self.next() as usize % (2 * self.bytes);
        let mut text = String::with_capacity(bytes + 24);
        while text.len() < bytes {
            let number = self.next();
            for word in 0..6 {
                text.push_str(WORDS[(number >> (8 * word)) as usize % WORDS.len()]);
            }
            text.push_str(&format!("{:x} ", number as u16));
        }
        text.truncate(bytes);
        Ok(fs::write(file, text)?)
    }

    /// The next number by chance (splitmix64).
    fn next(&mut self) -> u64 {
        self.noise = self.noise.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.noise ^ (self.noise >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
