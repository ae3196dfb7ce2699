// Package lean makes processes small that have started and now wait. Starting
// touches most of the program once, and a heap of garbage: a bottle has four
// processes, and what each of them holds from its start is most of what a bottle
// that does nothing takes. Start reading at [After].
package lean

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// StartGC is the GC percentage for starting: it puts the first collection off
// until there are 16 MiB. By default it comes at four, which starting alone
// fills, for nothing where the process is over soon.
const StartGC = 400

// Patience is how long a process has lived when it is worth to make it small. A
// shorter run does not pay for that.
const Patience = time.Second

// After has the process give back what its start took, once, when it has gone on
// for d. stop keeps that from happening.
func After(d time.Duration) (stop func()) {
	t := time.AfterFunc(d, Rest)
	return func() { t.Stop() }
}

// Rest gives back what this process does not need while it waits: garbage, and
// the pages of the program, which are read again from the page cache, in large
// pieces, when they are used.
func Rest() {
	debug.FreeOSMemory()
	for _, s := range fixed() {
		// Advice: where it is not taken, the process is as large as it was.
		unix.Madvise(s, unix.MADV_DONTNEED)
	}
}

// Collecting has garbage be collected by percent from the next collection on,
// and no later than in d; until then, by StartGC.
func Collecting(percent int, d time.Duration) {
	set := sync.OnceFunc(func() { debug.SetGCPercent(percent) })
	debug.SetGCPercent(StartGC)
	runtime.AddCleanup(new([64]byte), func(struct{}) { set() }, struct{}{})
	time.AfterFunc(d, set)
}

// fixed are the parts of the program that are mapped from its file and cannot be
// written to, so that dropping them loses nothing: text and constants.
func fixed() (out [][]byte) {
	aux, err := unix.Auxv()
	if err != nil {
		return nil
	}
	const phdrTag, phnumTag = 3, 5 // AT_PHDR, AT_PHNUM
	var at, n uintptr
	for _, kv := range aux {
		switch kv[0] {
		case phdrTag:
			at = kv[1]
		case phnumTag:
			n = kv[1]
		}
	}
	if at == 0 || n == 0 || n > 64 {
		return nil
	}
	page := uintptr(unix.Getpagesize())
	heads := unsafe.Slice((*programHeader)(mapped(at)), n)
	base := uintptr(0) // where the program lies, if not where it says
	for _, h := range heads {
		if h.kind == ptPhdr {
			base = at - uintptr(h.vaddr)
		}
	}
	for _, h := range heads {
		if h.kind != ptLoad || h.flags&pfWrite != 0 || h.filesz != h.memsz {
			continue
		}
		// Whole pages only: the last one may be shared with what can be written.
		start := (base + uintptr(h.vaddr) + page - 1) &^ (page - 1)
		end := (base + uintptr(h.vaddr+h.memsz)) &^ (page - 1)
		if end > start {
			out = append(out, unsafe.Slice((*byte)(mapped(start)), end-start))
		}
	}
	return out
}

// mapped is an address of the program, which the collector does not move.
func mapped(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

const (
	ptLoad  = 1
	ptPhdr  = 6
	pfWrite = 2
)

// programHeader is Elf64_Phdr, elf(5).
type programHeader struct {
	kind, flags          uint32
	offset, vaddr, paddr uint64
	filesz, memsz, align uint64
}
