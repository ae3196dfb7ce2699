package bottletest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Main runs the suite's program and exits if the process is that program inside
// a bottle. Otherwise it returns. The exit is without hooks: one of a test binary
// under -cover writes to standard error.
func Main() {
	if filepath.Base(os.Args[0]) != filepath.Base(guestPath) || len(os.Args) < 2 {
		return
	}
	part := guestParts[os.Args[1]]
	if part == nil {
		fmt.Fprintln(os.Stderr, "no such part:", os.Args[1])
		syscall.Exit(99)
	}
	if err := part(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		syscall.Exit(98)
	}
	syscall.Exit(0)
}

var guestParts = map[string]func([]string) error{
	"digest":  guestDigest,
	"names":   guestNames,
	"large":   guestLarge,
	"map":     guestMap,
	"connect": guestConnect,
	"touch":   guestTouch,
	"spawn":   guestSpawn,
}

// guestDigest prints a digest of its arguments and environment.
func guestDigest(args []string) error {
	env := os.Environ()
	slices.Sort(env) // the order of variables means nothing
	fmt.Println(len(args), digest(args), len(env), digest(env))
	return nil
}

// digest hashes lists of strings. Lists that differ only in the borders get
// different digests.
func digest(ss []string) string {
	h := sha256.New()
	for _, s := range ss {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// oddNames returns file names that confuse tools and formats.
func oddNames() []string {
	return []string{
		"a\nb", " ", "-rf", "\xff\xfe", "tab\there", "quote\"'`$(x)", "bell\a\x1b[31m", "ünïcode", "e\u0301", "\u202egnp.exe",
		"..x", "...", ".wh.a.txt", ".wh..wh..opq", strings.Repeat("n", 255), "back\\slash", "star*?[", "PaxHeaders.0", "0=1",
	}
}

// deepPath returns a path close to the longest possible one.
func deepPath() string { return strings.Repeat("deep/", 600) + "file" }

// guestNames makes a file for each odd name, holding the name, and a deep one.
func guestNames([]string) error {
	for _, n := range oddNames() {
		if err := os.WriteFile(n, []byte(n), 0o644); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(deepPath()), 0o755); err != nil {
		return err
	}
	return os.WriteFile(deepPath(), []byte("deep"), 0o644)
}

const largeSize = 48 << 20

func largeBlock(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8), 7}, 1<<20/3) }

// guestLarge makes a large file and a sparse one.
func guestLarge([]string) error {
	f, err := os.Create("large")
	if err != nil {
		return err
	}
	for i := range largeSize >> 20 {
		if _, err := f.Write(largeBlock(i)); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	s, err := os.Create("sparse")
	if err != nil {
		return err
	}
	if err := s.Truncate(100 << 20); err != nil {
		return err
	}
	if _, err := s.WriteAt([]byte("end"), 100<<20-3); err != nil {
		return err
	}
	return s.Close()
}

// guestConnect tries addresses and prints those that accepted a connection.
func guestConnect(addrs []string) error {
	for _, a := range addrs {
		network, addr, _ := strings.Cut(a, "/")
		c, err := net.DialTimeout(network, addr, 20*time.Second)
		if err == nil && network == "udp" {
			// Without a route even the connect of a datagram socket fails. With
			// one, only an answer tells.
			_, err = c.Write([]byte("x"))
		}
		if err != nil {
			continue
		}
		fmt.Println("connected:", a)
		c.Close()
	}
	ifs, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback == 0 {
			fmt.Println("interface:", i.Name)
		}
	}
	return nil
}

// guestSpawn starts up to the given number of processes, reports how many it
// could start, and waits for the end of standard input.
func guestSpawn(args []string) error {
	var n, done int
	if _, err := fmt.Sscan(args[0], &n); err != nil {
		return err
	}
	for range n {
		if _, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{}); err == nil {
			done++
		}
	}
	fmt.Println("spawned", done)
	var one [1]byte
	os.Stdin.Read(one[:])
	return nil
}

// guestTouch touches the given number of bytes of memory, reports it, and waits
// for the end of standard input.
func guestTouch(args []string) error {
	var n int
	if _, err := fmt.Sscan(args[0], &n); err != nil {
		return err
	}
	b := make([]byte, n)
	for i := 0; i < n; i += 4096 {
		b[i] = 1
	}
	fmt.Println("touched")
	var one [1]byte
	os.Stdin.Read(one[:])
	fmt.Println(b[0])
	return nil
}
