package reclaim

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

// resident returns how much of the program's file, and how much in all, is in memory.
func resident(t *testing.T) (program, all int) {
	t.Helper()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ours := false
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var kb int
		if l := sc.Text(); strings.Contains(l, "-") && strings.Contains(l, " r") && !strings.HasPrefix(l, "Rss") {
			ours = strings.HasSuffix(l, exe) && !strings.Contains(l, " rw-p ")
		} else if n, _ := fmt.Sscanf(l, "Rss: %d kB", &kb); n == 1 {
			all += kb
			if ours {
				program += kb
			}
		}
	}
	return program, all
}

var ballast []byte

func TestRest(t *testing.T) {
	parts := fixed()
	if len(parts) == 0 {
		t.Fatal("no part of the program was found")
	}
	sum := 0
	for _, p := range parts { // all of it is in memory
		for i := 0; i < len(p); i += 4096 {
			sum += int(p[i])
		}
	}
	ballast = make([]byte, 32<<20)
	for i := range ballast {
		ballast[i] = byte(i)
	}
	ballast = nil
	program, all := resident(t)
	Rest()
	after, allAfter := resident(t)
	if program < 1000 || after > program*4/5 || allAfter > all-20<<10 {
		t.Errorf("the program: %d kB, then %d; all: %d kB, then %d", program, after, all, allAfter)
	}
	again := 0
	for _, p := range parts {
		for i := 0; i < len(p); i += 4096 {
			again += int(p[i])
		}
	}
	if again != sum {
		t.Error("the program is not what it was")
	}
}

func TestAfter(t *testing.T) {
	stop := After(time.Hour)
	stop()
	before := freed()
	After(0)
	if !testenv.Poll(testenv.Patience(10*time.Second), func() bool { return freed() != before }) {
		t.Fatal("nothing was given back")
	}
}

// freed counts forced collections.
func freed() uint32 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.NumForcedGC
}

func TestCollecting(t *testing.T) {
	had := debug.SetGCPercent(100)
	defer debug.SetGCPercent(had)
	for name, passes := range map[string]func(){
		"at the first collection": runtime.GC,
		"with time":               func() {},
	} {
		wait := time.Hour
		if name == "with time" {
			wait = time.Millisecond
		}
		Collecting(77, wait)
		passes()
		// The percentage can only be read by setting it.
		got := 0
		testenv.Poll(testenv.Patience(10*time.Second), func() bool {
			got = debug.SetGCPercent(StartGC)
			return got != StartGC
		})
		if got != 77 {
			t.Errorf("%s: %d", name, got)
		}
	}
}
