"""What tests share, by what they test.

Results and boards: `made` and `made_boards` have made-up numbers, `boards` a small board, `domainbed` the
folders of DomainBed. Sweeps: `sweeps`, `commands` (as a user types them), `kills`, `disks` (full or
read-only), `plugins` (a test's own). Methods: `methods` (tiny problems), `float64`, and as plug-ins
`leaky_methods`, `odd_methods`. Data: `pictures` (and fonts), `stored_data`, `wilds_copies` with
`wilds_images` and `wilds_others`, `transformers_copies`. The machine: `browser`, `archives`, `paths`.
"""
