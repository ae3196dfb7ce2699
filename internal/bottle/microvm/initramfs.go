package microvm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/guest/program"
)

// initramfs returns the path of the machine's first file system: the guest program and
// the modules, made once for each pair of program and kernel.
func (c *cache) initramfs(ctx context.Context, k *kernel) (string, error) {
	agent, err := program.Binary()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\x00%x\x00%s\x00", format, sha256.Sum256(agent), k.version)
	for _, m := range k.modules {
		fi, err := os.Stat(m)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s\x00%d\x00%d\x00", m, fi.Size(), fi.ModTime().UnixNano())
	}
	return c.file(ctx, "initrd-"+hex.EncodeToString(sum.Sum(nil)[:16]), func(f *os.File) error {
		return writeInitramfs(f, agent, k.modules)
	})
}

func writeInitramfs(w io.Writer, agent []byte, modules []string) error {
	a := &cpio{w: w}
	for _, d := range []string{"dev", "proc", "sys", "modules"} {
		a.add(cpioEntry{name: d, mode: unix.S_IFDIR | 0o755})
	}
	// The kernel gives the first process this as its standard streams.
	a.add(cpioEntry{name: "dev/console", mode: unix.S_IFCHR | 0o600, major: 5, minor: 1})
	a.add(cpioEntry{name: "init", mode: unix.S_IFREG | 0o755, content: agent})
	for i, m := range modules {
		b, err := readModule(m)
		if err != nil {
			return err
		}
		a.add(cpioEntry{name: fmt.Sprintf("modules/%02d-%s.ko", i, moduleName(filepath.Base(m))), mode: unix.S_IFREG | 0o644, content: b})
	}
	return a.close()
}

// cpio writes the newc format (Documentation/driver-api/early-userspace/buffer-format.rst).
type cpio struct {
	w   io.Writer
	ino int
	err error
}

type cpioEntry struct {
	name         string
	mode         uint32
	major, minor int // of a device
	content      []byte
}

func (c *cpio) add(e cpioEntry) {
	c.ino++
	var b bytes.Buffer
	b.WriteString("070701")
	for _, v := range []int{c.ino, int(e.mode), 0, 0, 1, 0, len(e.content), 0, 0, e.major, e.minor, len(e.name) + 1, 0} {
		fmt.Fprintf(&b, "%08X", v)
	}
	b.WriteString(e.name)
	b.WriteByte(0)
	pad(&b)
	b.Write(e.content)
	pad(&b)
	if c.err == nil {
		_, c.err = c.w.Write(b.Bytes())
	}
}

// pad fills up to a multiple of four bytes.
func pad(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}

func (c *cpio) close() error {
	c.add(cpioEntry{name: "TRAILER!!!"})
	return c.err
}
