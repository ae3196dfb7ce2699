//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/image"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
)

const imageLong = `Images are root file systems for bottles: carboy run --image REF. REF is oci:DIR
(an OCI layout), tar:FILE (of docker save, or an OCI archive), a path to either, or a
reference to a registry. To name an image in a layout or archive, add a colon and the
name. built:NAME is what carboy image build -t NAME built, and sha256:… an image that is
there.

An image is fetched once and kept by its digest. Passwords of registries are read where
docker login and podman login write them, except those that a helper program keeps.`

const imageExample = `  carboy image pull ghcr.io/team/toolbox:1
  podman save --format oci-archive -o box.tar toolbox && carboy image pull tar:box.tar
  carboy run --image ghcr.io/team/toolbox:1 -- make test
  carboy image rm sha256:4b0f…`

func (a *app) imageCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "image", Short: "fetch, build, list and remove images", Long: imageLong, Example: imageExample, GroupID: "keep", Args: a.unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.imagePullCmd(), a.imageBuildCmd(), a.imageListCmd(), a.imageRemoveCmd())
	return cmd
}

func (a *app) imagePullCmd() *cobra.Command {
	var pin string
	var most size
	var files int64
	var asJSON bool
	cmd := &cobra.Command{
		Use: "pull REF", Short: "fetch and unpack an image", Long: "Fetch and unpack an image, and print its digest. An image that is there already is not fetched again.\n\n" + imageLong,
		Example: "  carboy image pull alpine:3\n  carboy image pull --digest sha256:4b0f… ghcr.io/team/toolbox:1",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("name one: carboy image pull REF", "image pull: %d images", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				o := carboy.PullOptions{Pin: pin, Limits: image.Bounds{Bytes: int64(most), Entries: files}}
				if most > 0 {
					o.Limits.Ratio = -1
				}
				img, err := a.pull(ctx, c, args[0], o)
				if err != nil {
					return err
				}
				return a.printImage(img, asJSON)
			})
		},
	}
	cmd.Flags().StringVar(&pin, "digest", "", "the `DIGEST` that the image must have")
	cmd.Flags().Var(&most, "max-bytes", "the most that is unpacked, such as 100GiB (default 20GiB, and from 1GiB on 100 times what is fetched)")
	cmd.Flags().Int64Var(&files, "max-files", 0, "the most `FILES` that are unpacked (default 2097152)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print ref, digest, root, config, layers, bytes, left, when")
	return cmd
}

// printImage prints the digest of an image that was fetched or built, or all as JSON.
func (a *app) printImage(img *carboy.Image, asJSON bool) error {
	if asJSON {
		return a.printJSON(img)
	}
	for _, l := range img.Left {
		a.say(plainText, "left out: %s", errorText(l))
	}
	_, err := fmt.Fprintln(a.stdout, img.Digest)
	return err
}

// imageFor fetches or builds the image of a bottle.
func (a *app) imageFor(ctx context.Context, c *carboy.Client, p *carboy.Preflight) (*carboy.Image, error) {
	if !p.Builds() {
		return a.pull(ctx, c, p.Image, carboy.PullOptions{})
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	img, err := c.BuildImage(ctx, p, func(s string) { a.say(dimText, "build: %s", safetext.String(s, 200)) })
	if errors.Is(err, context.Canceled) {
		return nil, fmt.Errorf("%w while the image was built; the unfinished image is not kept", carboy.ErrInterrupted)
	}
	return img, err
}

// pull fetches an image and prints the progress. An interrupt ends it: the command that
// decides about interrupts has not started yet.
func (a *app) pull(ctx context.Context, c *carboy.Client, ref string, o carboy.PullOptions) (*carboy.Image, error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	o.Progress = func(p image.Progress) {
		if a.redraws(a.stderr) {
			fmt.Fprint(a.stderr, clearLine)
		}
		switch {
		case p.Done:
		case p.Size > 0:
			a.say(plainText, "layer %d of %d, %s", p.Layer, p.Layers, receipt.Bytes(p.Size))
		default:
			a.say(plainText, "layer %d of %d is there", p.Layer, p.Layers)
		}
	}
	var img *carboy.Image
	err := a.slowly(ctx, "fetching", func(ctx context.Context) (err error) {
		img, err = c.PullImage(ctx, ref, o)
		return err
	})
	if errors.Is(err, context.Canceled) {
		return nil, fmt.Errorf("%w while the image was fetched; the unfinished image is not kept", carboy.ErrInterrupted)
	}
	return img, err
}

func (a *app) imageListCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "list images, newest first", Args: noArgs,
		Example: "  carboy image list\n  carboy image list --json | jq -r '.[].digest'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(_ context.Context, c *carboy.Client) error {
				all, err := c.Images()
				if err != nil {
					return err
				}
				if asJSON {
					if all == nil {
						all = []carboy.Image{}
					}
					return a.printJSON(all)
				}
				if len(all) == 0 {
					a.say(plainText, "no images; carboy image pull REF fetches one")
					return nil
				}
				w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "DIGEST\tFETCHED\tSIZE\tLAYERS\tREFERENCE")
				for _, img := range all {
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", safetext.String(img.Digest, 80), img.When.Local().Format("2006-01-02 15:04"), receipt.Bytes(img.Bytes), len(img.Layers), safetext.String(img.Ref, 200))
				}
				return w.Flush()
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print an array of ref, digest, root, config, layers, bytes, left, when")
	return cmd
}

func (a *app) imageRemoveCmd() *cobra.Command {
	return &cobra.Command{
		Use: "rm DIGEST...", Short: "remove images", Long: "Remove images by their digests, with the layers that no other image needs. An image that a run uses stays.",
		Example: "  carboy image rm sha256:4b0f…",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("carboy image list shows digests", "image rm: no digest")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				for _, d := range args {
					if err := c.RemoveImage(ctx, d); err != nil {
						return err
					}
				}
				return nil
			})
		},
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) (out []string, _ cobra.ShellCompDirective) {
			a.withClient(cmd, func(_ context.Context, c *carboy.Client) error {
				all, err := c.Images()
				for _, img := range all {
					out = append(out, img.Digest+"\t"+safetext.String(img.Ref, 80))
				}
				return err
			})
			return out, cobra.ShellCompDirectiveNoFileComp
		},
	}
}
