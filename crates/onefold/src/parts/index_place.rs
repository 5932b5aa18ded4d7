//! Where the chunk index of an archive is, when it is not beside the data: the file `fast` in the
//! archive's directory names the *index directory*, and the file `belongs-to` there names the archive.
//!
//! Anybody can write a file `fast` that names a directory of somebody else's, and have the archive
//! copied. So nothing is read or written in a directory before its own file says that it belongs to this
//! archive: by the archive's id, by a number drawn by chance that `fast` has too, and by the inode or
//! path of the archive's directory, so that a copy of the archive leaves the index of the first one
//! alone. Whatever is wrong with both files costs speed.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use onefold_backend::{Directory, Stands, random::random_bytes};
use onefold_core::{Error, Files, Kind, Result, hex_digits};

use super::{
    node_list::{is_here, place, whole},
    operator::word,
};

/// In the archive's directory: the path of the index directory, and the number by chance, a line each.
const FAST: &str = "fast";

/// In the index directory: the archive's id, the number by chance, and the place of the archive's
/// directory, a line each.
const BELONGS_TO: &str = "belongs-to";

/// What a killed process may leave of the first file in an index directory.
const BELONGS_TO_NEW: &str = "belongs-to.new";

/// Bytes of each of them at most.
const BYTES_MAX: u64 = 64 << 10;

/// Digits of an id, and of the number by chance.
const DIGITS: usize = 32;

/// The index directory of an archive.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct IndexPlace {
    path: PathBuf,
    chance: String,
    /// To whom `fast` belongs; a directory of another user is none of its.
    owner: u32,
}

impl IndexPlace {
    /// What the directory of an archive says, if it says something.
    ///
    /// # Errors
    /// `InvalidInput` when that is no path and number; `Denied` when `fast` is no regular file; those
    /// of the system.
    pub(super) fn read(own: &Directory) -> Result<Option<IndexPlace>> {
        let Some((bytes, owner)) = own.small(FAST, BYTES_MAX)? else { return Ok(None) };
        let mut lines = bytes.split(|&byte| byte == b'\n');
        let path = PathBuf::from(OsString::from_vec(lines.next().unwrap_or_default().to_vec()));
        match lines.next().and_then(digits) {
            Some(chance) if path.is_absolute() => Ok(Some(IndexPlace { path, chance, owner })),
            _ => Err(Error::new(Kind::InvalidInput, format!("its file {FAST} names no directory"))),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the directory for the archive of this id at `archive`.
    ///
    /// # Errors
    /// `NotFound` when it is not there, or has no file that says whose it is; `Denied` when it is
    /// another archive's, or another user's; to write, `Unsupported` where locks may not hold; those of
    /// the system.
    pub(super) fn open(&self, id: [u8; 16], archive: &Path, writes: bool) -> Result<Directory> {
        let files = Directory::open_itself(&self.path, writes, word())?;
        let shown = self.path.display();
        let owner = files.owner()?;
        if owner != self.owner {
            let why = format!(
                "{shown} belongs to user {owner}, and the archive that names it to user {}",
                self.owner
            );
            return Err(Error::new(Kind::Denied, why));
        }
        let Some(mark) = Mark::read(&files)? else {
            let why = format!("{shown} has no file {BELONGS_TO}; perhaps nothing is mounted there");
            return Err(Error::new(Kind::NotFound, why));
        };
        if mark.id != hex_digits(id) || mark.chance != self.chance {
            let why = format!("{shown} belongs to another archive");
            return Err(Error::new(Kind::Denied, why));
        }
        mark.is_of(archive, &self.path)?;
        Ok(files)
    }

    /// Errors once the directory belongs to this archive no more, as when its index was moved while
    /// this process waited for its turn. `files` is the directory, opened for this alone.
    pub(super) fn stands(&self, files: Directory) -> Stands {
        let (shown, chance) = (self.path.display().to_string(), self.chance.clone());
        Arc::new(move || match Mark::read(&files)? {
            Some(mark) if mark.chance == chance => Ok(()),
            _ => {
                let why = format!("{shown} is the index directory of this archive no more");
                Err(Error::new(Kind::Denied, why))
            }
        })
    }

    /// True when both name one directory by its number, whatever paths lead there.
    pub(super) fn is_same(&self, other: &IndexPlace) -> bool {
        self.chance == other.chance
    }

    /// Makes a directory, or takes an empty one or one that is this archive's already, for the index
    /// of the archive at `archive`; durable on return. Nothing names it yet.
    ///
    /// # Errors
    /// `InvalidInput` when one lies within the other; `Exists` when something else is in it; `Denied`
    /// when it is another archive's; those of the system.
    pub(super) fn attach(
        path: &Path,
        id: [u8; 16],
        archive: &Path,
    ) -> Result<(IndexPlace, Arc<Directory>)> {
        let path = apart(path, archive)?;
        remove_half_made(&path)?;
        let place_of = |files: &Directory, chance: String| {
            Ok::<_, Error>(IndexPlace { path: path.clone(), chance, owner: files.owner()? })
        };
        match Directory::create_as(&path, word()) {
            Ok(files) => {
                files.exposed().iter().for_each(|sentence| super::operator::warn(sentence));
                let own = Directory::open(archive, false)?;
                let chance = hex_digits(random_bytes::<16>()?);
                let mark = Mark {
                    id: hex_digits(id),
                    chance: chance.clone(),
                    place: place(&own, archive)?,
                };
                files.replace(BELONGS_TO, &mark.bytes())?;
                Ok((place_of(&files, chance)?, Arc::new(files)))
            }
            Err(error) if error.kind() == Kind::Exists => {
                let files = Directory::open_itself(&path, true, word())?;
                let Some(mark) = Mark::read(&files)? else { return Err(error) };
                if mark.id != hex_digits(id) {
                    let why = format!("{} belongs to another archive", path.display());
                    return Err(Error::new(Kind::Denied, why));
                }
                mark.is_of(archive, &path)?;
                Ok((place_of(&files, mark.chance)?, Arc::new(files)))
            }
            Err(error) => Err(error),
        }
    }

    /// Lets the archive in this directory name it; durable on return.
    ///
    /// # Errors
    /// The errors of the system.
    pub(super) fn name(&self, own: &Directory) -> Result<()> {
        let mut text = self.path.clone().into_os_string().into_vec();
        text.push(b'\n');
        text.extend_from_slice(self.chance.as_bytes());
        text.push(b'\n');
        own.replace(FAST, &text)
    }

    /// Lets the archive in this directory name none; durable on return.
    ///
    /// # Errors
    /// The errors of the system.
    pub(super) fn name_none(own: &Directory) -> Result<()> {
        remove(own, FAST)?;
        own.sync_names()
    }
}

/// Makes a directory for an index, or looks whether it is empty, before there is an archive at
/// `archive`.
///
/// # Errors
/// As [`IndexPlace::attach`].
pub(super) fn prepare(path: &Path, archive: &Path) -> Result<()> {
    Directory::create_as(&apart(path, archive)?, word()).map(|_| ())
}

/// Removes the files of an index, and what says whose it is; durable on return.
///
/// # Errors
/// The errors of the system.
pub(super) fn clear(files: &Directory) -> Result<()> {
    for name in files.names()?.iter().filter(|name| name.starts_with("index-")) {
        remove(files, name)?;
    }
    remove(files, BELONGS_TO)?;
    files.sync_names()
}

/// Lets a directory count as empty that a process was killed in before it said whose it is.
fn remove_half_made(path: &Path) -> Result<()> {
    let is_half_made =
        Directory::open(path, false).and_then(|files| Ok(files.names()? == [BELONGS_TO_NEW]));
    match is_half_made {
        Ok(true) => remove(&Directory::open_as(path, true, word())?, BELONGS_TO_NEW),
        // Taking it tells what is wrong with it.
        _ => Ok(()),
    }
}

fn remove(files: &Directory, name: &str) -> Result<()> {
    match files.remove(name) {
        Err(error) if error.kind() != Kind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What the file in an index directory says.
struct Mark {
    id: String,
    chance: String,
    place: Vec<u8>,
}

impl Mark {
    fn read(files: &Directory) -> Result<Option<Mark>> {
        let Some((bytes, _)) = files.small(BELONGS_TO, BYTES_MAX)? else { return Ok(None) };
        let mut lines = bytes.splitn(3, |&byte| byte == b'\n');
        let mut number = || lines.next().and_then(digits);
        let (id, chance) = (number(), number());
        let place = lines.next().unwrap_or_default();
        let place = place.strip_suffix(b"\n").unwrap_or(place).to_vec();
        Ok(id.zip(chance).map(|(id, chance)| Mark { id, chance, place }))
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{}\n{}\n", self.id, self.chance).into_bytes();
        bytes.extend_from_slice(&self.place);
        bytes.push(b'\n');
        bytes
    }

    /// Errors when the archive at `archive` is a copy of the one that the directory belongs to.
    fn is_of(&self, archive: &Path, path: &Path) -> Result<()> {
        if is_here(&self.place, archive)? {
            return Ok(());
        }
        let at = self.place.iter().position(|&byte| byte == b' ').map_or(0, |at| at + 1);
        let why = format!(
            "{} belongs to the archive in {}, of which {} is a copy; `onefold index` gives it a \
             directory of its own",
            path.display(),
            String::from_utf8_lossy(&self.place[at..]),
            archive.display()
        );
        Err(Error::new(Kind::Denied, why))
    }
}

/// A number of so many digits.
fn digits(line: &[u8]) -> Option<String> {
    let is_one = line.len() == DIGITS && line.iter().all(u8::is_ascii_hexdigit);
    is_one.then(|| String::from_utf8_lossy(line).into_owned())
}

/// The whole path of a directory for an index, which lies apart from the archive.
fn apart(path: &Path, archive: &Path) -> Result<PathBuf> {
    let (path, archive) = (whole(&resolved(path)?)?, resolved(archive)?);
    if path.starts_with(&archive) || archive.starts_with(&path) {
        let why = format!(
            "{} and {} lie within one another; the index goes into a directory on another disk",
            path.display(),
            archive.display()
        );
        return Err(Error::new(Kind::InvalidInput, why));
    }
    Ok(path)
}

/// The path without links of what is there, or may be made there.
fn resolved(path: &Path) -> Result<PathBuf> {
    let wrong = |e| Error::from_io(path.display(), e);
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let path = std::path::absolute(path).map_err(wrong)?;
            match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => {
                    Ok(fs::canonicalize(parent).map_err(wrong)?.join(name))
                }
                _ => Err(wrong(error)),
            }
        }
        found => found.map_err(wrong),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const ID: [u8; 16] = [0x5a; 16];

    struct Desk(tempfile::TempDir);

    impl Desk {
        fn new() -> Desk {
            let desk = Desk(tempfile::tempdir().unwrap());
            Directory::create(&desk.at("a")).unwrap();
            desk
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Attaches `fast`, and lets the archive name it.
        fn attach(&self) -> IndexPlace {
            let (place, _) = IndexPlace::attach(&self.at("fast"), ID, &self.at("a")).unwrap();
            place.name(&Directory::open(&self.at("a"), true).unwrap()).unwrap();
            IndexPlace::read(&Directory::open(&self.at("a"), false).unwrap()).unwrap().unwrap()
        }
    }

    #[test]
    fn a_directory_is_used_when_both_sides_say_so() {
        let desk = Desk::new();
        let place = desk.attach();
        place.open(ID, &desk.at("a"), true).unwrap();
        let refused = |kind: Kind, said: &str, id: [u8; 16], archive: &str| {
            let error = place.open(id, &desk.at(archive), true).err().unwrap();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(said), "{error}");
        };
        refused(Kind::Denied, "another archive", [0x5b; 16], "a");
        // A copy of the archive has other inodes and another path.
        Directory::create(&desk.at("copy")).unwrap();
        refused(Kind::Denied, "is a copy", ID, "copy");
        // An archive that was moved has its inode.
        fs::rename(desk.at("a"), desk.at("moved")).unwrap();
        place.open(ID, &desk.at("moved"), true).unwrap();
        fs::rename(desk.at("moved"), desk.at("a")).unwrap();
        // A link to it, an empty directory in its place, and none.
        fs::rename(desk.at("fast"), desk.at("elsewhere")).unwrap();
        std::os::unix::fs::symlink(desk.at("elsewhere"), desk.at("fast")).unwrap();
        refused(Kind::Denied, "is a link", ID, "a");
        fs::remove_file(desk.at("fast")).unwrap();
        refused(Kind::NotFound, "fast", ID, "a");
        fs::create_dir(desk.at("fast")).unwrap();
        refused(Kind::NotFound, "nothing is mounted", ID, "a");
        // The directory of the same archive, as another `fast` named it.
        let (other, _) = IndexPlace::attach(&desk.at("other"), ID, &desk.at("a")).unwrap();
        fs::write(desk.at("fast/belongs-to"), fs::read(desk.at("other/belongs-to")).unwrap())
            .unwrap();
        refused(Kind::Denied, "another archive", ID, "a");
        other.open(ID, &desk.at("a"), true).unwrap();
    }

    #[test]
    fn a_directory_that_holds_something_else_is_not_taken() {
        let desk = Desk::new();
        let attach = |name: &str, id| IndexPlace::attach(&desk.at(name), id, &desk.at("a"));
        let kind = |name: &str, id| attach(name, id).err().map(|error| error.kind());
        fs::create_dir(desk.at("full")).unwrap();
        fs::write(desk.at("full/index-0000000001"), "x").unwrap();
        assert_eq!(kind("full", ID), Some(Kind::Exists));
        for within in ["a/fast", "a", "."] {
            assert_eq!(kind(within, ID), Some(Kind::InvalidInput), "{within}");
        }
        std::os::unix::fs::symlink(desk.at("a"), desk.at("link")).unwrap();
        assert_eq!(kind("link", ID), Some(Kind::InvalidInput));
        assert_eq!(kind("missing/fast", ID), Some(Kind::NotFound));
        // What a killed process left is no content.
        fs::create_dir(desk.at("half")).unwrap();
        fs::write(desk.at("half/belongs-to.new"), "5a").unwrap();
        assert_eq!(kind("half", ID), None);
        // Its own is taken again as it is, and nobody else takes it.
        let first = desk.attach();
        assert_eq!(attach("fast", ID).unwrap().0.chance, first.chance);
        assert_eq!(kind("fast", [1; 16]), Some(Kind::Denied));
        let files = Directory::open(&desk.at("fast"), true).unwrap();
        let stands = first.stands(first.open(ID, &desk.at("a"), false).unwrap());
        stands().unwrap();
        clear(&files).unwrap();
        assert_eq!(files.names().unwrap(), Vec::<String>::new());
        // A process that opened it before it was given up writes nothing there any more.
        assert!(stands().unwrap_err().to_string().contains("no more"));
    }

    #[test]
    fn any_bytes_name_a_directory_or_none() {
        let desk = Desk::new();
        let own = Directory::open(&desk.at("a"), true).unwrap();
        let number = "0".repeat(DIGITS);
        for text in ["", "\n", "/x", "/x\nabc\n", "x\n\n", &format!("relative\n{number}\n")] {
            own.replace(FAST, text.as_bytes()).unwrap();
            assert!(IndexPlace::read(&own).is_err(), "{text:?}");
        }
        own.replace(FAST, format!("/x\n{number}\n").as_bytes()).unwrap();
        assert_eq!(IndexPlace::read(&own).unwrap().unwrap().path(), Path::new("/x"));
        own.replace(FAST, &vec![b'/'; BYTES_MAX as usize + 1]).unwrap();
        assert!(IndexPlace::read(&own).is_err());
        IndexPlace::name_none(&own).unwrap();
        assert!(IndexPlace::read(&own).unwrap().is_none());
        for text in [&b""[..], b"\n\n\n", b"\xff\n\xff\n", &[b'0'; 99]] {
            own.replace(BELONGS_TO, text).unwrap();
            assert!(Mark::read(&own).unwrap().is_none(), "{text:?}");
        }
    }
}
