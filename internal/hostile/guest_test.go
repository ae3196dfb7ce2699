package hostile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// probe is one try. nil means that it did what its name says.
type probe struct {
	name string
	f    func() error
}

// guestMain takes the process over inside a bottle.
func guestMain() {
	if len(os.Args) < 2 || os.Args[0] != guestPath {
		return
	}
	if f := guestTools[os.Args[1]]; f != nil {
		if err := f(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	set := guestSets[os.Args[1]]
	if set == nil {
		fmt.Fprintln(os.Stderr, "no such set:", os.Args[1])
		os.Exit(99)
	}
	for _, p := range set(os.Args[2:]) {
		start := time.Now()
		err := try(p.f)
		if d := time.Since(start); d > time.Second {
			fmt.Fprintln(os.Stderr, p.name, "took", d.Round(time.Millisecond))
		}
		if err == nil {
			fmt.Printf("%s\tdone\n", p.name)
		} else {
			fmt.Printf("%s\t%s\n", p.name, strings.ReplaceAll(err.Error(), "\n", " "))
		}
	}
	fmt.Println("\nall probes ran")
	os.Exit(0)
}

// try bounds a probe: one that hangs has not succeeded, but it is a finding of
// its own kind, and would stop those after it.
func try(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(40 * time.Second):
		return errors.New("hangs")
	}
}

var guestSets = map[string]func(args []string) []probe{
	"files":   fileProbes,
	"procs":   procProbes,
	"kernel":  kernelProbes,
	"escape":  escapeProbes,
	"devices": deviceProbes,
	"sockets": socketProbes,
	"netlink": netlinkProbes,
	"reach":   reachProbes,
	"names":   nameProbes,
	"packets": packetProbes,
	"web":     webProbes,
	"tls":     tlsProbes,
}

var guestTools = map[string]func(args []string) error{
	"touch-memory": touchMemory,
	"open-files":   floodFiles,
	"make-inodes":  floodInodes,
	"fill-pipes":   floodPipes,
	"spawn":        floodProcesses,
	"sparse":       sparseFile,
	"raw-socket":   rawSocket,
}

// read succeeds when a file can be read and holds something.
func read(path string) func() error {
	return func() error {
		b, err := os.ReadFile(path)
		if err == nil && len(b) == 0 {
			err = errors.New("empty")
		}
		return err
	}
}

// list succeeds when a directory holds something.
func list(path string) func() error {
	return func() error {
		ents, err := os.ReadDir(path)
		if err == nil && len(ents) == 0 {
			err = errors.New("empty")
		}
		return err
	}
}

// write succeeds when a file can be opened for writing and written to.
func write(path string) func() error {
	return func() error {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.Write([]byte("1"))
		return err
	}
}

// find succeeds when a file below root holds text.
func find(root, text string) error {
	found := errors.New("not found")
	filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if strings.Contains(path, "/proc/") && d.IsDir() && strings.Count(path, "/") > 4 {
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() && d.Type()&os.ModeSymlink == 0 {
			return nil
		}
		fi, err := os.Stat(path)
		if err != nil || !fi.Mode().IsRegular() || fi.Size() > 8<<20 {
			return nil
		}
		switch filepath.Base(path) {
		case "kmsg", "clear_refs", "pagemap", "mem":
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return nil
		}
		defer f.Close()
		buf := make([]byte, 64<<10)
		n, _ := f.Read(buf)
		if strings.Contains(string(buf[:n]), text) {
			found = nil
			return filepath.SkipAll
		}
		return nil
	})
	return found
}

// reverse hides a text from a search that would find it in its own arguments.
func reverse(s string) string {
	b := []byte(s)
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return string(b)
}
