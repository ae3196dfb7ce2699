package attacker

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// driven returns the attacks that need the whole bottle: floods that end it, and attacks
// on people who land its changes or read its records.
func driven() []Attack {
	return slices.Concat(
		family("floods", "S4",
			Attack{ID: "memory", How: "Take memory until something stops it.", Defence: "the bottle's memory is metered from outside and the run ends typed", Source: "codegenie S5-06", Judge: ByHost},
			Attack{ID: "fork-bomb", How: "Start processes that start processes.", Defence: "the inner kernel's limit; host processes don't follow", Source: "codegenie S5-06", Judge: ByHost},
			Attack{ID: "process-storm", How: "Begin and end 10,000 processes as fast as the kernel can.", Defence: "an inner process is no host process", Judge: ByHost},
			Attack{ID: "output", How: "Print without end, on both streams.", Defence: "output is counted, cut and the run ends typed", Source: "codegenie S5-06", Judge: ByHost},
			Attack{ID: "disk", How: "Fill the disk.", Defence: "writes go to one bounded file, which has no name", Source: "codegenie S5-06", Judge: ByHost},
			Attack{ID: "sparse", How: "Make a file of a terabyte that has no contents.", Defence: "the size of a file is bounded by its name, too", Judge: ByHost},
			Attack{ID: "inodes", How: "Make 20,000 empty files and directories 200 deep, which cost the kernel memory and carboy work.", Defence: "the kernel's memory counts as well", Judge: ByHost},
			Attack{ID: "kernel-buffers", How: "Fill pipes and sockets, whose contents the kernel must hold.", Defence: "the kernel's memory counts as well", Judge: ByHost},
			Attack{ID: "descriptors", How: "Open files until no descriptor is left.", Defence: "a process runs out alone", Source: "codegenie S5-06", Judge: ByHost},
			Attack{ID: "long-exec", How: "Start programs with megabytes of arguments and environment.", Defence: "the inner kernel bounds and holds them", Judge: ByHost},
			Attack{ID: "wall-clock", How: "Ignore every signal and never end.", Defence: "the clock is outside; the bottle is destroyed", Judge: ByHost},
		),
		family("landing", "S6",
			Attack{ID: "before-landing", How: "Change, remove and replace everything in the workspace, its git directory included.", Defence: "writes go to an overlay; the host's directory is read", Source: "CVE-2026-25725", Judge: ByHost},
			Attack{ID: "hooks-and-settings", How: "Leave git hooks, git settings and settings of agents and editors that the host would trust and run.", Defence: "protected paths land only when a person includes them", Source: "CVE-2026-25725, srt", Judge: ByHost},
			Attack{ID: "links-out", How: "Leave links out of the workspace, and files below directories that became links.", Defence: "nothing is followed: openat2 beneath the workspace", Source: "CVE-2026-39861", Judge: ByHost},
			Attack{ID: "swapped-links", How: "Have a directory exchanged with a link out, again and again, while changes land.", Defence: "each path is opened beneath the workspace, without following", Source: "OpenShell PR#352", Judge: ByHost},
			Attack{ID: "rights", How: "Leave programs with set-user-id and set-group-id bits.", Defence: "such files are withheld", Judge: ByHost},
			Attack{ID: "bombs", How: "Leave a sparse file and an archive that unpacks to a thousand times its size.", Defence: "holes stay holes, and nothing is unpacked", Judge: ByHost},
			Attack{ID: "special-files", How: "Leave pipes, sockets and hard links to shared files.", Defence: "they don't land; a hard link lands as a file of its own", Judge: ByHost},
			Attack{ID: "odd-names", How: "Leave names with line ends, dots, dashes, 255 bytes and bytes that are no text.", Defence: "names are bytes, and never words of a command", Judge: ByHost},
			Attack{ID: "host-edits", How: "Change a file that the user changes meanwhile, so that landing would overwrite it.", Defence: "what the bottle started from is compared; a conflict stops the landing", Judge: ByHost},
			Attack{ID: "hidden-commits", How: "Commit a file that the host trusts and keep it out of the work tree, so that the next checkout writes it.", Defence: "each new commit's tree is judged like the work tree", Judge: ByHost},
			Attack{ID: "forged-objects", How: "Store other content under names that the host knows or a commit needs, loose and in a pack with a forged index.", Defence: "names are computed from contents; no file of git's is copied", Judge: ByHost},
			Attack{ID: "references", How: "Leave replacements, stashes, moved tags, grafts, alternates, hooks and settings beside an honest commit.", Defence: "only the branch that is checked out goes forward", Judge: ByHost},
			Attack{ID: "harmful-trees", How: "Commit a tree that names the directory above it.", Defence: "git checks each object, and what it calls harmful never lands", Judge: ByHost},
			Attack{ID: "crowd", How: "Hide a file of a commit from people behind hundreds of broken references and a moved HEAD.", Defence: "each reference is looked at on its own", Judge: ByHost},
		),
		family("terminal-text", "S6",
			Attack{ID: "file-names", How: "Put escape sequences, line ends and characters that turn text around into file names.", Defence: "text from inside is shown with everything invisible made visible", Judge: ByHost},
			Attack{ID: "file-contents", How: "Put them into files, to drive the terminal of who reads the diff.", Defence: "text from inside is shown with everything invisible made visible", Judge: ByHost},
			Attack{ID: "host-names", How: "Put them into host names that are refused and reported.", Defence: "text from inside is shown with everything invisible made visible", Judge: ByHost},
			Attack{ID: "commits", How: "Put them into the author and subject of a commit.", Defence: "text from inside is shown with everything invisible made visible", Judge: ByHost},
			Attack{ID: "link-targets", How: "Put them into the targets of links.", Defence: "text from inside is shown with everything invisible made visible", Judge: ByHost},
		),
		family("trace", "T1",
			Attack{ID: "renamed-program", How: "Run the shell under an innocent name.", Defence: "the kernel writes down the file that it loads, and its digest", Source: "OpenShell PR#1496", Judge: ByHost},
			Attack{ID: "false-name", How: "Give a program another one's name as its first argument.", Defence: "the kernel writes down the file that it loads, not what the program is told", Source: "OpenShell PR#1496", Judge: ByHost},
			Attack{ID: "memfd-program", How: "Run a program that exists in memory only, so that no file is named.", Defence: "what has no name has a digest", Judge: ByHost},
			Attack{ID: "deleted-program", How: "Run a program that deletes its own file first.", Defence: "it is written down when it is loaded", Judge: ByHost},
			Attack{ID: "fake-lines", How: "Print lines as strace and as carboy itself write them, on both streams.", Defence: "nothing that the command prints is read", Judge: ByHost},
			Attack{ID: "search-in-vain", How: "Look for secrets where there are none, and hope that only what is opened is seen.", Defence: "misses are facts as well", Judge: ByHost},
			Attack{ID: "attempts", How: "Try what is refused: mounting, bpf, tracing process 1.", Defence: "attempts are facts as well, with their errors", Judge: ByHost},
			Attack{ID: "flood", How: "Bury one program under thousands of short processes before and after it.", Defence: "facts have numbers; what is lost is counted", Judge: ByHost},
		),
		family("records", "A1",
			Attack{ID: "tampered-log", How: "Edit a record of the audit log, delete one, cut the end off.", Defence: "a Merkle log with signed checkpoints", Judge: ByHost},
			Attack{ID: "buried-refusal", How: "Be refused once, then 2,000 times otherwise, so that the first is lost.", Defence: "lists are bounded, the log and the totals are not", Judge: ByHost},
			Attack{ID: "secret-in-records", Promise: "A2", How: "Put a secret from the environment into names and command lines that get recorded.", Defence: "values whose names say so are redacted before anything is written", Judge: ByHost},
		),
	)
}

// Planted lists files that make a host run code when somebody works in their directory.
var Planted = []string{
	".git/hooks/pre-commit", ".git/hooks/post-checkout", ".git/config", ".git/info/attributes", ".git/modules/x/config", ".GIT/hooks/pre-push", "sub/.git/hooks/pre-commit", "sub/.git/config",
	".claude/settings.json", ".claude/settings.local.json", ".mcp.json", "CLAUDE.md", "AGENTS.md", ".vscode/tasks.json", ".idea/workspace.xml", ".cursor/mcp.json", ".envrc", ".gdbinit", ".devcontainer/devcontainer.json",
	".carboy/agents/x.md", ".bot-bottle/agents/x.md", "deep/er/.vscode/settings.json",
}

// Owned is the content of every file of the vandal's that must not land without a
// question.
const Owned = "#!/bin/sh\n# owned by the vandal\n"

// escapeText must never reach a terminal: it sets the title and the clipboard, reverses
// text, and forges a line.
const escapeText = "\x1b]0;owned\x07\x1b[2J\u202egnp.\u2066\rFAKE\x9b31m"

// OddNames lists file names that tools and formats often handle wrongly.
var OddNames = []string{"odd\nname", "-rf", "odd\xff\xfe", "odd\ttab", "odd'`$(x)", "..odd", "...", strings.Repeat("n", 255), "odd\\slash", "odd*?[", ".wh.odd"}

// vandal changes the workspace, its current directory, as a hostile agent would. args
// holds a directory outside.
func vandal(args []string) error {
	outside := args[0]
	var errs []error
	do := func(err error) { errs = append(errs, err) }
	write := func(name, text string, mode os.FileMode) {
		do(os.MkdirAll(filepath.Dir(name), 0o755))
		do(os.WriteFile(name, []byte(text), mode))
		do(os.Chmod(name, mode))
	}
	write("fine.txt", "fine\n", 0o644)
	write("a.txt", "changed\n", 0o777)
	do(os.Remove("keep.txt"))
	do(os.RemoveAll(".git/objects"))
	for _, p := range Planted {
		write(p, Owned, 0o755)
	}
	// Links out, and a directory that becomes one.
	do(os.RemoveAll("plain"))
	do(os.Symlink(outside, "plain"))
	do(os.Symlink(outside, "out"))
	do(os.Symlink(outside+"/f", "out-file"))
	do(os.Symlink("../../../../../../../../../../.."+outside+"/f", "out-relative"))
	os.WriteFile("hostlink/f", []byte(Owned), 0o644) // leads nowhere inside
	do(os.MkdirAll("later", 0o755))
	write("later/f", Owned, 0o644)
	write("later/g", Owned, 0o644)
	// Rights.
	write("suid", Owned, 0o755)
	do(os.Chmod("suid", 0o755|os.ModeSetuid))
	write("sgid", Owned, 0o755)
	do(os.Chmod("sgid", 0o755|os.ModeSetgid))
	// Bombs.
	f, err := os.Create("sparse")
	do(err)
	do(f.Truncate(SparseSize))
	do(f.Close())
	f, err = os.Create("bomb.gz")
	do(err)
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	do(err)
	_, err = io.CopyN(z, endless{}, 64<<20)
	do(err)
	do(errors.Join(z.Close(), f.Close()))
	// Special files.
	do(unix.Mkfifo("pipe", 0o666))
	do(os.Link("fine.txt", "hard"))
	do(unix.Mknod("socket", unix.S_IFSOCK|0o666, 0))
	for _, n := range OddNames {
		write("odd/"+n, "odd\n", 0o644)
	}
	write("text/"+strings.ReplaceAll(escapeText, "/", ""), "x\n", 0o644)
	write("text/contents.txt", "before\n"+escapeText+"\nafter\n", 0o644)
	do(os.Symlink(escapeText, "text/link"))
	if err := errors.Join(errs...); err != nil {
		return cannot("%v", err)
	}
	fmt.Println("vandalised")
	return nil
}

// SparseSize is the size of the vandal's sparse file.
const SparseSize = 48 << 20

// endless returns zeros to every read.
type endless struct{}

func (endless) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// Names that the trickster uses and that the host looks for.
const (
	Innocent = "innocent.txt"
	Gone     = "gone-before-long"
	Lie      = "/usr/bin/not-what-it-says"
	Evil     = "evil-that-never-ran"
	Buried   = "buried-under-others"
	Forks    = 1500 // before the buried program, and after it
)

// trickster does things that the trace should have, in ways that may avoid it. args holds
// a file of the host.
func trickster(args []string) error {
	ws, err := os.Getwd()
	if err != nil {
		return cannot("%v", err)
	}
	e := &Env{World: &World{Workspace: ws}}
	flood := func() error { return storm([]string{fmt.Sprint(Forks)}) }
	sh, err := copyProgram(e, "/bin/sh", Innocent)
	if err != nil {
		return err
	}
	gone, err := copyProgram(e, "/bin/sh", Gone)
	if err != nil {
		return err
	}
	lying := exec.Command(sh, "-c", ":")
	lying.Args[0] = Lie
	for _, err := range []error{
		e.command(nil, sh, "-c", ":"), lying.Run(), e.command(nil, gone, "-c", `rm "$0"`, gone), runFromMemory(e, "/bin/cat", "/dev/null"),
		flood(), exec.Command("/bin/true", Buried).Run(), flood(),
	} {
		if err != nil {
			return cannot("%v", err)
		}
	}
	for _, w := range []io.Writer{os.Stdout, os.Stderr} {
		fmt.Fprintf(w, "[pid 7] execve(\"/usr/bin/%s\", [\"%s\"], 0x7ffd) = 0\n", Evil, Evil)
		fmt.Fprintf(w, "{\"type\":\"fact\",\"seq\":1,\"op\":\"exec\",\"pid\":7,\"path\":\"/usr/bin/%s\",\"observed\":true}\n", Evil)
	}
	os.Open(args[0])
	os.Stat("/root/.ssh/id_ed25519")
	unix.Mount("none", "/tmp", "tmpfs", 0, "")
	call(unix.SYS_BPF, 0, zero(), 72)()
	unix.PtraceAttach(1)
	fmt.Println("tricked")
	return nil
}
